#include "trainer/algorithms/policy_loss.h"

#include <fmt/format.h>

#include "common/status.h"
#include "trainer/algorithms/rejection.h"
#include "trainer/algorithms/token_losses.h"

namespace keel::trainer::rl {

namespace {

void Need(const char* what, const at::Tensor& tensor, int64_t tokens) {
  if (tensor.defined() && tensor.dim() == 1 && tensor.size(0) == tokens) return;
  throw Error(StatusCode::kInternal,
              fmt::format("policy loss: expected {} of {} tokens, found {}", what, tokens,
                          tensor.defined() ? fmt::format("{}", fmt::join(tensor.sizes(), " x "))
                                           : std::string("none")));
}

// Tokens that off_policy_mask_threshold leaves without a loss; undefined: none.
at::Tensor OffPolicy(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  if (!options.off_policy_mask_threshold) return {};
  const at::Tensor& sampling =
      in.sampling_log_probs.defined() ? in.sampling_log_probs : in.old_log_probs;
  const at::Tensor gap = sampling.to(at::kDouble) - in.log_probs.detach().to(at::kDouble);
  const at::Tensor means =
      in.layout.Spread(in.layout.SequenceSums(gap) / in.layout.Lengths().clamp_min(1));
  return means.gt(*options.off_policy_mask_threshold).logical_and(in.advantages.lt(0));
}

// What the loss reads, checked. Whatever stands on tokens that do not count must reach neither loss
// nor gradient.
PolicyLossInputs CountedInputs(const PolicyLossInputs& inputs, const PolicyLossOptions& options) {
  PolicyLossInputs in = inputs;
  const auto take = [&](const char* what, at::Tensor& tensor, bool needed) {
    if (!needed && !tensor.defined()) return;
    Need(what, tensor, in.layout.mask.size(0));
    tensor = in.layout.Counted(tensor);
  };
  take("log_probs", in.log_probs, true);
  take("advantages", in.advantages, true);
  take("old_log_probs", in.old_log_probs,
       TraitsOf(options.mode).old_log_probs || options.kl_times_ratio ||
           !options.bypass.rules.empty() ||
           (options.off_policy_mask_threshold && !in.sampling_log_probs.defined()));
  take("sampling_log_probs", in.sampling_log_probs, false);
  take("ref_log_probs", in.ref_log_probs, options.use_kl_loss);
  take("entropy", in.entropy, options.entropy_coeff != 0);
  take("rollout_is_weights", in.rollout_is_weights, false);
  take("chosen", in.chosen, TraitsOf(options.mode).covariance);
  take("uncertain", in.uncertain, options.top_entropy_quantile < 1);
  return in;
}

}  // namespace

PolicyLossSums PolicyLossSums::Of(const std::array<double, 11>& v) {
  return {v[0], v[1], v[2], v[3], v[4], v[5], v[6], v[7], v[8], v[9], v[10]};
}

std::map<std::string, double> PolicyLossSums::Metrics(const PolicyLossOptions& options) const {
  const double n = tokens > rejected ? tokens - rejected : 1;
  std::map<std::string, double> metrics = {
      {"actor/pg_loss", pg_loss},
      {"actor/pg_clipfrac", clipped / n},
      {"actor/pg_clipfrac_lower", clipped_lower / n},
      {"actor/ppo_kl", ppo_kl / n},
      {"actor/entropy", entropy},
  };
  if (options.use_kl_loss) {
    metrics["actor/kl_loss"] = kl_loss;
    metrics["actor/kl_coef"] = options.kl_loss_coef;
  }
  if (options.off_policy_mask_threshold) metrics["actor/off_policy_masked"] = off_policy / n;
  if (!options.bypass.rules.empty())
    metrics["actor/rollout_rs_masked_fraction"] = tokens > 0 ? rejected / tokens : 0;
  return metrics;
}

at::Tensor KlPenalty(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, KlKind kind) {
  const at::Tensor difference = log_probs - ref_log_probs;
  at::Tensor estimate;
  switch (kind.estimator) {
    case KlEstimator::kK1:
      estimate = difference;
      break;
    case KlEstimator::kAbs:
      estimate = difference.abs();
      break;
    case KlEstimator::kK2:
      return 0.5 * difference.square();
    case KlEstimator::kK3: {
      const at::Tensor reverse = (-difference).clamp(-20, 20);
      estimate = (reverse.exp() - reverse - 1).clamp(-10, 10);
      break;
    }
  }
  if (!kind.straight_through) return estimate;
  const at::Tensor k2 = 0.5 * difference.square();
  return k2 - k2.detach() + estimate.detach();
}

PolicyLossResult PolicyLoss(const PolicyLossInputs& inputs, const PolicyLossOptions& options,
                            const LossDenominators& denominators) {
  const PolicyLossInputs in = CountedInputs(inputs, options);
  const bool some = options.top_entropy_quantile < 1;
  const auto learnt = [&](const at::Tensor& tokens) {
    return some ? at::where(in.uncertain.ne(0), tokens, at::zeros({}, tokens.options())) : tokens;
  };

  // 1. Losses by token.
  TokenLosses by_token = LossesByToken(in, options);
  if (in.rollout_is_weights.defined() && !by_token.weighted)
    by_token.losses = by_token.losses * in.rollout_is_weights;
  const at::Tensor off_policy = OffPolicy(in, options);
  if (off_policy.defined()) {
    by_token.losses =
        at::where(off_policy, at::zeros({}, by_token.losses.options()), by_token.losses);
  }

  // 2. One number.
  const at::Tensor weights = LossWeights(in.layout, options.aggregation, denominators);
  TokenLayout kept = in.layout;
  if (!options.bypass.rules.empty())
    kept.mask = KeptTokens(in.layout, in.log_probs - in.old_log_probs, options.bypass.rules);
  const at::Tensor pg_weights =
      LossWeights(kept,
                  TraitsOf(options.mode).within_sequence ? LossAggregation::kSeqMeanTokenMean
                                                         : options.aggregation,
                  denominators);
  const at::Tensor pg_loss = WeightedSum(learnt(by_token.losses), pg_weights);
  at::Tensor loss = pg_loss;
  at::Tensor entropy = at::zeros({}, pg_loss.options());
  at::Tensor kl_loss = entropy;
  if (in.entropy.defined()) entropy = WeightedSum(in.entropy, weights);
  if (options.entropy_coeff != 0) {
    loss = loss - options.entropy_coeff *
                      (some ? WeightedSum(in.entropy * in.uncertain, weights) : entropy);
  }
  if (options.use_kl_loss) {
    at::Tensor kl = KlPenalty(in.log_probs, in.ref_log_probs, options.kl_loss_type);
    if (options.kl_times_ratio) kl = kl * RatioOf(in, options);
    kl_loss = WeightedSum(kl, weights);
    loss = loss + options.kl_loss_coef * kl_loss;
  }

  // 3. What to report; one transfer from the device.
  const at::NoGradGuard no_grad;
  const auto count = [&](const at::Tensor& flags) {
    return flags.defined() ? flags.logical_and(kept.mask).sum().to(at::kDouble)
                           : at::zeros({}, weights.options().dtype(at::kDouble));
  };
  at::Tensor ppo_kl = at::zeros({}, weights.options().dtype(at::kDouble));
  // A loss without a ratio moves the policy like any other.
  const at::Tensor moved = by_token.ppo_kl.defined()    ? by_token.ppo_kl.detach()
                           : in.old_log_probs.defined() ? in.old_log_probs - in.log_probs.detach()
                                                        : at::Tensor();
  if (moved.defined()) {
    ppo_kl = WeightedSum(moved, kept.mask.to(at::kFloat)).to(at::kDouble);
  }
  at::Tensor learnt_entropy = at::zeros({}, weights.options().dtype(at::kDouble));
  const at::Tensor learnt_from = some ? in.uncertain.ne(0) : in.layout.mask;
  if (in.entropy.defined()) {
    learnt_entropy = WeightedSum(in.entropy.detach(), learnt_from.to(at::kFloat)).to(at::kDouble);
  }
  return {
      loss,
      PolicyLossSums::Totals(at::stack(
          {pg_loss.detach().to(at::kDouble), entropy.detach().to(at::kDouble),
           kl_loss.detach().to(at::kDouble), count(by_token.clipped), count(by_token.clipped_lower),
           ppo_kl, in.layout.mask.sum().to(at::kDouble), count(off_policy),
           in.layout.mask.logical_and(kept.mask.logical_not()).sum().to(at::kDouble),
           learnt_entropy, learnt_from.logical_and(in.layout.mask).sum().to(at::kDouble)}))};
}

}  // namespace keel::trainer::rl
