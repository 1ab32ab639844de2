#include "trainer/algorithms/dpo_loss.h"

#include <algorithm>

namespace keel::trainer::rl {

DpoSums& DpoSums::operator+=(const DpoSums& other) {
  preference_loss += other.preference_loss;
  sft_loss += other.sft_loss;
  chosen_rewards += other.chosen_rewards;
  rejected_rewards += other.rejected_rewards;
  accurate += other.accurate;
  pairs += other.pairs;
  return *this;
}

std::map<std::string, double> DpoSums::Metrics() const {
  const double n = pairs > 0 ? pairs : 1;
  return {{"train/preference_loss", preference_loss},
          {"train/sft_loss", sft_loss},
          {"rewards/chosen", chosen_rewards / n},
          {"rewards/rejected", rejected_rewards / n},
          {"rewards/margins", (chosen_rewards - rejected_rewards) / n},
          {"rewards/accuracies", accurate / n}};
}

DpoResult DpoLoss(const DpoInputs& in, const DpoOptions& options,
                  const DpoDenominators& denominators) {
  const auto pairs = static_cast<int64_t>((in.layout.boundaries.size() - 1) / 2);
  const auto over_pairs = static_cast<double>(std::max<int64_t>(1, denominators.pairs));

  // 1. Log-ratios to the reference by answer, in fp64: sums of many tokens decide small margins.
  const at::Tensor ratios =
      in.layout.SequenceSums(in.log_probs.to(at::kDouble) - in.ref_log_probs.to(at::kDouble))
          .narrow(0, 0, 2 * pairs)
          .view({pairs, 2});
  const at::Tensor lengths = in.layout.Lengths().narrow(0, 0, 2 * pairs).view({pairs, 2});
  const at::Tensor real = lengths.gt(0).all(1);  // [pairs]; one without tokens is padding
  const at::Tensor chosen = ratios.select(1, 0);
  const at::Tensor rejected = ratios.select(1, 1);

  // 2. The preference.
  at::Tensor losses;
  if (options.type == DpoLossType::kSigmoid) {
    const at::Tensor margin = options.beta * (chosen - rejected);
    losses = -at::log_sigmoid(margin) * (1 - options.label_smoothing);
    if (options.label_smoothing > 0)
      losses = losses - at::log_sigmoid(-margin) * options.label_smoothing;
  } else {
    const at::Tensor means = ratios / lengths.clamp_min(1).to(at::kDouble);
    losses = (means.select(1, 0) - means.select(1, 1) - 1 / (2 * options.beta)).square();
  }
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
      (options.preference_loss_weight * preference + options.sft_loss_weight * sft).to(at::kFloat);

  const at::NoGradGuard no_grad;
  const at::Tensor counted = real.to(at::kDouble);
  const at::Tensor sums =
      at::stack({preference.detach(), sft.detach(), (options.beta * chosen * counted).sum(),
                 (options.beta * rejected * counted).sum(),
                 (chosen.gt(rejected).to(at::kDouble) * counted).sum(), counted.sum()})
          .cpu();
  const double* values = sums.const_data_ptr<double>();
  return {loss, {values[0], values[1], values[2], values[3], values[4], values[5]}};
}

}  // namespace keel::trainer::rl
