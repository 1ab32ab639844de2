#include "trainer/algorithms/token_losses.h"

#include <algorithm>
#include <cmath>

namespace keel::trainer::rl {

namespace {

constexpr double kLogRatioBound = 20;
constexpr double kGspoLogRatioBound = 10;
constexpr double kTinyProbability = 1e-8;
constexpr double kTinyWeight = 1e-10;
constexpr double kLeastVespoLambda = 1e-4;

at::Tensor BoundedLogRatio(const PolicyLossInputs& in) {
  return (in.log_probs - in.old_log_probs).clamp(-kLogRatioBound, kLogRatioBound);
}

at::Tensor ClipRatio(const at::Tensor& ratio, const PolicyLossOptions& options) {
  return ratio.clamp(1 - options.clip_ratio_low, 1 + options.clip_ratio_high);
}

// Means over what counts in each sequence, at each of its tokens; in fp64 where `tokens` are.
at::Tensor SequenceMeans(const TokenLayout& layout, const at::Tensor& tokens) {
  return layout.Spread(layout.SequenceSums(tokens) / layout.Lengths().clamp_min(1));
}

TokenLosses Vanilla(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor& advantages = in.advantages;
  const at::Tensor log_ratio = BoundedLogRatio(in);
  const at::Tensor ratio = log_ratio.exp();
  const at::Tensor free = -advantages * ratio;
  const at::Tensor bounded = -advantages * ClipRatio(ratio, options);
  const at::Tensor clipped = at::maximum(free, bounded);
  const at::Tensor floor = -advantages * options.clip_ratio_c;
  const at::Tensor negative = advantages.lt(0);
  return {at::where(negative, at::minimum(floor, clipped), clipped), -log_ratio, bounded.gt(free),
          clipped.gt(floor).logical_and(negative)};
}

TokenLosses Gspo(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = in.log_probs - in.old_log_probs;
  // The sequence's value, each token's gradient.
  const at::Tensor ratio =
      (in.log_probs - in.log_probs.detach() + SequenceMeans(in.layout, log_ratio.detach()))
          .clamp_max(kGspoLogRatioBound)
          .exp();
  const at::Tensor free = -in.advantages * ratio;
  const at::Tensor bounded = -in.advantages * ClipRatio(ratio, options);
  return {at::maximum(free, bounded), -log_ratio, bounded.gt(free), {}};
}

TokenLosses Cispo(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = BoundedLogRatio(in);
  const at::Tensor ratio = log_ratio.detach().exp();
  const at::Tensor weight = ClipRatio(ratio, options);
  return {-weight * in.advantages * in.log_probs, -log_ratio, ratio.ne(weight), {}};
}

// Whether a token may still be learnt from. Its probability has not moved further than the clip
// range where the advantage pushes it: in itself (tv), or as the divergence of the token against
// all others (kl).
at::Tensor DppoTrusts(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor now = in.log_probs.detach().to(at::kDouble),
                   old = in.old_log_probs.to(at::kDouble);
  const at::Tensor p = now.exp(), q = old.exp();
  at::Tensor up, down;
  if (options.mode == PolicyLossMode::kDppoTv) {
    up = (p - q).le(options.clip_ratio_high);
    down = (p - q).ge(-options.clip_ratio_low);
  } else {
    const at::Tensor divergence =
        q * (old - now) + (1 - q) * ((1 - q + kTinyProbability) / (1 - p + kTinyProbability)).log();
    up = divergence.le(options.clip_ratio_high).logical_or(p.le(q));
    down = divergence.le(options.clip_ratio_low).logical_or(p.ge(q));
  }
  return at::where(in.advantages.gt(0), up, down);
}

TokenLosses Dppo(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = BoundedLogRatio(in).detach();
  const at::Tensor ratio = log_ratio.exp();
  const at::Tensor trusted = DppoTrusts(in, options);
  const at::Tensor weight = ratio.clamp_max(options.clip_ratio_c) * trusted;
  return {-in.advantages * weight * in.log_probs, -log_ratio, trusted.logical_not(),
          ratio.gt(options.clip_ratio_c).logical_and(trusted)};
}

TokenLosses Sapo(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = BoundedLogRatio(in);
  // In fp64: the gradient is of how far the gate is from its end, which fp32 rounds away.
  const auto numbers = in.advantages.options().dtype(at::kDouble);
  const at::Tensor tau = at::where(in.advantages.gt(0), at::full({}, options.tau_pos, numbers),
                                   at::full({}, options.tau_neg, numbers));
  const at::Tensor gate = (tau * (log_ratio.to(at::kDouble).exp() - 1)).sigmoid() * (4 / tau);
  return {-gate * in.advantages, -log_ratio, {}, {}};
}

TokenLosses ClipCov(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = in.log_probs - in.old_log_probs;
  const at::Tensor ratio = log_ratio.exp();
  const at::Tensor clipped =
      at::maximum(-in.advantages * ratio, -in.advantages * ClipRatio(ratio, options));
  const at::Tensor chosen = in.chosen.ne(0);
  return {clipped * chosen.logical_not(), -log_ratio, chosen, {}};
}

TokenLosses KlCov(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = in.log_probs - in.old_log_probs;
  const at::Tensor size = log_ratio.abs();
  const at::Tensor free = -in.advantages * log_ratio.exp();
  return {at::where(in.chosen.ne(0), free + options.ppo_kl_coef * size, free), size, {}, {}};
}

// The sequence's loss at each of its tokens, whose mean it is.
TokenLosses GeoMean(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = in.log_probs - in.old_log_probs;
  const at::Tensor bounded = log_ratio.clamp(-options.clip_ratio_low, options.clip_ratio_high);
  const at::Tensor sign = in.advantages.sign();
  const at::Tensor pessimistic = sign * at::minimum(sign * log_ratio, sign * bounded);
  const auto mean = [&](const at::Tensor& tokens) {
    return SequenceMeans(in.layout, tokens.to(at::kDouble));
  };
  at::Tensor losses = -mean(in.advantages) * mean(pessimistic).exp();
  if (in.rollout_is_weights.defined())
    losses = losses * mean((in.rollout_is_weights.to(at::kDouble) + kTinyWeight).log()).exp();
  const at::Tensor clipped = log_ratio.ne(bounded);
  return {losses, -log_ratio, clipped.logical_and(in.advantages.gt(0)),
          clipped.logical_and(in.advantages.lt(0)), true};
}

TokenLosses Dro(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const at::Tensor log_ratio = in.log_probs - in.old_log_probs;
  return {-(in.log_probs * in.advantages - 0.5 * options.dro_beta * log_ratio.square()),
          -log_ratio,
          {},
          {}};
}

TokenLosses Vespo(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  const double least = std::log(kTinyProbability);
  const at::Tensor log_ratio = BoundedLogRatio(in).detach();
  at::Tensor sums = in.layout.SequenceSums(log_ratio.to(at::kDouble));
  if (in.rollout_is_weights.defined()) {
    sums = sums + in.layout.SequenceSums(
                      in.rollout_is_weights.to(at::kDouble).log().clamp(least, kLogRatioBound));
  }
  const at::Tensor log_weight = in.layout.Spread(sums.clamp(least, kLogRatioBound));
  const VespoOptions& of = options.vespo;
  const at::Tensor positive = in.advantages.ge(0);
  const auto by_sign = [&](double pos, double neg) {
    return at::where(positive, at::full({}, pos, log_weight.options()),
                     at::full({}, neg, log_weight.options()));
  };
  const at::Tensor k = by_sign(of.k_pos, of.k_neg);
  const at::Tensor lambda = by_sign(std::max(of.lambda_pos, kLeastVespoLambda),
                                    std::max(of.lambda_neg, kLeastVespoLambda));
  const at::Tensor phi = (lambda + k * log_weight - lambda * log_weight.exp())
                             .exp()
                             .nan_to_num(/*nan=*/0, /*posinf=*/0, /*neginf=*/0)
                             .to(at::kFloat);
  return {-phi * in.advantages * in.log_probs, -log_ratio, {}, {}, true};
}

// verl's compute_policy_loss_reinforce: the plain policy gradient, weighted by the current ratio.
TokenLosses Reinforce(const PolicyLossInputs& in, const BypassOptions& options) {
  at::Tensor losses = -in.advantages * in.log_probs;
  const at::Tensor log_ratio = (in.log_probs - in.old_log_probs).detach();
  if (options.level) {
    at::Tensor logs = log_ratio.to(at::kDouble);
    if (options.level == ImportanceLevel::kSequence)
      logs = in.layout.Spread(in.layout.SequenceSums(logs));
    at::Tensor weights = logs.clamp(-kLogRatioBound, kLogRatioBound).exp();
    weights = options.lower
                  ? weights * weights.ge(*options.lower).logical_and(weights.le(options.upper))
                  : weights.clamp_max(options.upper);
    losses = losses * weights.to(at::kFloat);
  }
  return {losses, -log_ratio, {}, {}, true};
}

}  // namespace

at::Tensor RatioOf(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  if (options.mode != PolicyLossMode::kGspo) return BoundedLogRatio(in).exp();
  return SequenceMeans(in.layout, in.log_probs - in.old_log_probs)
      .clamp_max(kGspoLogRatioBound)
      .exp();
}

TokenLosses LossesByToken(const PolicyLossInputs& in, const PolicyLossOptions& options) {
  switch (options.mode) {
    case PolicyLossMode::kVanilla:
      return Vanilla(in, options);
    case PolicyLossMode::kGspo:
      return Gspo(in, options);
    case PolicyLossMode::kCispo:
      return Cispo(in, options);
    case PolicyLossMode::kGpg:
      return {-in.log_probs * in.advantages, {}, {}, {}};
    case PolicyLossMode::kDppoTv:
    case PolicyLossMode::kDppoKl:
      return Dppo(in, options);
    case PolicyLossMode::kSapo:
      return Sapo(in, options);
    case PolicyLossMode::kClipCov:
      return ClipCov(in, options);
    case PolicyLossMode::kKlCov:
      return KlCov(in, options);
    case PolicyLossMode::kGeoMean:
      return GeoMean(in, options);
    case PolicyLossMode::kDro:
      return Dro(in, options);
    case PolicyLossMode::kVespo:
      return Vespo(in, options);
    case PolicyLossMode::kBypassMode:
      break;
  }
  return options.bypass.loss == BypassLoss::kReinforce ? Reinforce(in, options.bypass)
                                                       : Vanilla(in, options);
}

}  // namespace keel::trainer::rl
