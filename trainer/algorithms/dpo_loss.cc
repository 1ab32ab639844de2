#include "trainer/algorithms/dpo_loss.h"

#include <algorithm>
#include <cmath>

#include "common/status.h"

namespace keel::trainer::rl {

namespace {

constexpr double kAlphaExponentBound = 80;

// [T] fp64: 1, or from the other answer's length on `alpha`.
at::Tensor TailWeights(const TokenLayout& layout, double alpha) {
  const at::NoGradGuard no_grad;
  const at::Tensor lengths = layout.Lengths().to(at::kDouble);  // [S]
  const int64_t answers = lengths.size(0) / 2 * 2;
  at::Tensor shared = lengths.clone();
  shared.narrow(0, 0, answers)
      .copy_(lengths.narrow(0, 0, answers)
                 .view({-1, 2})
                 .amin(1, /*keepdim=*/true)
                 .expand({-1, 2})
                 .reshape({-1}));
  // A token's number among those that count in its answer, from 1.
  const at::Tensor number =
      layout.mask.to(at::kDouble).cumsum(0) - layout.Spread(lengths.cumsum(0) - lengths);
  return at::where(number.gt(layout.Spread(shared)), at::full({}, alpha, number.options()),
                   at::ones({}, number.options()));
}

// Sums over the answers' tokens, [P, 2].
at::Tensor AnswerSums(const TokenLayout& layout, const at::Tensor& tokens,
                      const DpoOptions& options) {
  const auto pairs = static_cast<int64_t>((layout.boundaries.size() - 1) / 2);
  const at::Tensor weighted =
      options.ld_alpha ? tokens * TailWeights(layout, *options.ld_alpha) : tokens;
  return layout.SequenceSums(weighted).narrow(0, 0, 2 * pairs).view({pairs, 2});
}

// f'(u) of the ratio to the reference, whose logarithm is given.
at::Tensor Scores(const at::Tensor& log_ratios, const DpoOptions& options) {
  switch (options.f_divergence) {
    case FDivergence::kReverseKl:
      break;
    case FDivergence::kForwardKl:
      return 1 - (-log_ratios).exp();
    case FDivergence::kJsDivergence:
      return std::log(2.0) + at::log_sigmoid(log_ratios);
    case FDivergence::kAlphaDivergence: {
      const double power = options.f_alpha_divergence_coef - 1;
      if (std::fabs(power) < 1e-6) break;  // the limit
      return ((power * log_ratios).clamp_max(kAlphaExponentBound).exp() - 1) / power;
    }
  }
  return log_ratios;
}

// -log sigmoid(margin), with a share of the pairs the other way round.
at::Tensor Smoothed(const at::Tensor& margin, double label_smoothing) {
  const at::Tensor losses = -at::log_sigmoid(margin) * (1 - label_smoothing);
  return label_smoothing > 0 ? losses - at::log_sigmoid(-margin) * label_smoothing : losses;
}

// Of the pairs of a micro-batch, [P] fp64 each.
struct Pairs {
  at::Tensor chosen, rejected;                // log-ratios to the reference
  at::Tensor chosen_score, rejected_score;    // what the divergence makes of them
  at::Tensor chosen_length, rejected_length;  // tokens, at least 1
  at::Tensor margin;                          // log p(chosen) - log p(rejected)
};

at::Tensor Partner(const at::Tensor& partner, const at::Tensor& like, const char* what) {
  if (like.numel() == 0) return like;  // padding alone
  if (partner.defined() && partner.sizes() == like.sizes()) return partner;
  throw Error(StatusCode::kInternal, std::string("DPO loss: a sorted loss without ") + what);
}

at::Tensor PairLosses(const Pairs& of, DpoLossType type, const DpoPartners& partners,
                      const DpoOptions& options) {
  const double beta = options.beta;
  const double smoothing = options.label_smoothing;
  const auto score_margin = [&] { return beta * (of.chosen_score - of.rejected_score); };
  const auto margin_of_means = [&] {
    return of.chosen_score / of.chosen_length - of.rejected_score / of.rejected_length;
  };
  switch (type) {
    case DpoLossType::kSigmoid:
      return Smoothed(score_margin(), smoothing);
    case DpoLossType::kIpo:
      return (margin_of_means() - 1 / (2 * beta)).square();
    case DpoLossType::kHinge:
      return (1 - score_margin()).relu();
    case DpoLossType::kExoPair: {
      const at::Tensor margin = score_margin();
      return margin.sigmoid() * (at::log_sigmoid(margin) - std::log1p(-smoothing)) +
             (-margin).sigmoid() * (at::log_sigmoid(-margin) - std::log(smoothing));
    }
    case DpoLossType::kNcaPair:
      return -at::log_sigmoid(beta * of.chosen) - 0.5 * at::log_sigmoid(-beta * of.chosen) -
             0.5 * at::log_sigmoid(-beta * of.rejected);
    case DpoLossType::kRobust: {
      const at::Tensor margin = score_margin();
      return (smoothing * at::log_sigmoid(-margin) - (1 - smoothing) * at::log_sigmoid(margin)) /
             (1 - 2 * smoothing);
    }
    case DpoLossType::kBcoPair:
      return -at::log_sigmoid(beta * of.chosen) - at::log_sigmoid(-beta * of.rejected);
    case DpoLossType::kSppoHard:
      return (of.chosen - 0.5 / beta).square() + (of.rejected + 0.5 / beta).square();
    case DpoLossType::kAot: {
      const at::Tensor partner =
          Partner(partners.of_margin, of.margin, "the reference's sorted margins");
      return Smoothed(beta * (of.margin - partner), smoothing);
    }
    case DpoLossType::kAotUnpaired: {
      const at::Tensor low = Partner(partners.of_chosen, of.chosen, "partners of the preferred");
      const at::Tensor high =
          Partner(partners.of_rejected, of.rejected, "partners of the rejected");
      // A term of the sorted sum is of two answers, which mostly belong to different pairs. Its
      // value is counted here with the preferred one; the rejected one adds its gradient.
      const at::Tensor other = Smoothed(beta * (high - of.rejected), smoothing);
      return Smoothed(beta * (of.chosen - low), smoothing) + other - other.detach();
    }
    case DpoLossType::kApoZero:
      return 1 - (beta * of.chosen).sigmoid() + (beta * of.rejected).sigmoid();
    case DpoLossType::kApoDown:
      return (beta * of.chosen).sigmoid() + 1 - (beta * (of.chosen - of.rejected)).sigmoid();
    case DpoLossType::kDiscopop: {
      const at::Tensor margin = score_margin();
      const at::Tensor blend = (margin / options.discopop_tau).sigmoid();
      return -at::log_sigmoid(margin) * (1 - blend) + (-margin).exp() * blend;
    }
    case DpoLossType::kSigmoidNorm:
      return -at::log_sigmoid(beta * margin_of_means());
    case DpoLossType::kSft:
      break;
  }
  return at::zeros_like(of.chosen);
}

// [P], of the answers' lengths [P, 2].
at::Tensor PairWeights(const DpoInputs& in, const at::Tensor& lengths) {
  if (!in.log_sum_squares.defined())
    throw Error(StatusCode::kInternal, "DPO loss: weighted pairs without the sums of squares");
  const at::NoGradGuard no_grad;
  const at::Tensor aligned = in.log_probs.to(at::kDouble) - in.log_sum_squares.to(at::kDouble);
  const int64_t answers = lengths.numel();
  const at::Tensor sums = in.layout.SequenceSums(aligned).narrow(0, 0, answers).view_as(lengths);
  return (sums / lengths.clamp_min(1)).sum(1).exp();
}

}  // namespace

bool DpoOptions::has(DpoLossType type) const {
  return std::any_of(terms.begin(), terms.end(),
                     [type](const DpoTerm& term) { return term.type == type; });
}

bool DpoOptions::sorted() const {
  return std::any_of(terms.begin(), terms.end(),
                     [](const DpoTerm& term) { return TraitsOf(term.type).sorted; });
}

double DpoOptions::sft_weight() const {
  double weight = sft_loss_weight;
  for (const DpoTerm& term : terms)
    if (term.type == DpoLossType::kSft) weight += term.weight;
  return weight;
}

DpoSums DpoSums::Of(const std::array<double, 6>& v) { return {v[0], v[1], v[2], v[3], v[4], v[5]}; }

std::map<std::string, double> DpoSums::Metrics() const {
  const double n = pairs > 0 ? pairs : 1;
  return {{"train/preference_loss", preference_loss},
          {"train/sft_loss", sft_loss},
          {"rewards/chosen", chosen_rewards / n},
          {"rewards/rejected", rejected_rewards / n},
          {"rewards/margins", (chosen_rewards - rejected_rewards) / n},
          {"rewards/accuracies", accurate / n}};
}

at::Tensor AnswerLogProbs(const TokenLayout& layout, const at::Tensor& log_probs,
                          const DpoOptions& options) {
  return AnswerSums(layout, log_probs.to(at::kDouble), options);
}

DpoResult DpoLoss(const DpoInputs& in, const DpoOptions& options,
                  const DpoDenominators& denominators) {
  const auto pairs = static_cast<int64_t>((in.layout.boundaries.size() - 1) / 2);
  const auto over_pairs = static_cast<double>(std::max<int64_t>(1, denominators.pairs));

  // 1. Log-ratios to the reference by answer, in fp64: sums of many tokens decide small margins.
  const at::Tensor ratios = AnswerSums(
      in.layout, in.log_probs.to(at::kDouble) - in.ref_log_probs.to(at::kDouble), options);
  const at::Tensor lengths = in.layout.Lengths().narrow(0, 0, 2 * pairs).view({pairs, 2});
  const at::Tensor real = lengths.gt(0).all(1);  // [pairs]; one without tokens is padding
  const at::Tensor chosen = ratios.select(1, 0);
  const at::Tensor rejected = ratios.select(1, 1);

  // 2. The preference.
  const at::Tensor scores = Scores(ratios, options);
  const at::Tensor divisors = lengths.clamp_min(1).to(at::kDouble);
  Pairs of{chosen,
           rejected,
           scores.select(1, 0),
           scores.select(1, 1),
           divisors.select(1, 0),
           divisors.select(1, 1),
           {}};
  if (options.has(DpoLossType::kAot)) {
    const at::Tensor answers = AnswerLogProbs(in.layout, in.log_probs, options);
    of.margin = answers.select(1, 0) - answers.select(1, 1);
  }
  at::Tensor losses = at::zeros_like(chosen);
  for (const DpoTerm& term : options.terms) {
    if (term.type == DpoLossType::kSft) continue;
    losses = losses + term.weight * PairLosses(of, term.type, in.partners, options);
  }
  if (options.use_weighting) losses = losses * PairWeights(in, lengths);
  const at::Tensor preference = at::where(real, losses, at::zeros_like(losses)).sum() / over_pairs;

  // 3. The supervised term, over the tokens of the preferred answers.
  const at::Tensor chosen_nll =
      -in.layout.SequenceSums(in.layout.Counted(in.log_probs).to(at::kDouble))
           .narrow(0, 0, 2 * pairs)
           .view({pairs, 2})
           .select(1, 0)
           .sum();
  const at::Tensor sft =
      chosen_nll / static_cast<double>(std::max<int64_t>(1, denominators.chosen_tokens));
  const at::Tensor loss =
      (options.preference_loss_weight * preference + options.sft_weight() * sft).to(at::kFloat);

  const at::NoGradGuard no_grad;
  const at::Tensor counted = real.to(at::kDouble);
  return {loss, DpoSums::Totals(at::stack(
                    {preference.detach(), sft.detach(), (options.beta * chosen * counted).sum(),
                     (options.beta * rejected * counted).sum(),
                     (chosen.gt(rejected).to(at::kDouble) * counted).sum(), counted.sum()}))};
}

}  // namespace keel::trainer::rl
