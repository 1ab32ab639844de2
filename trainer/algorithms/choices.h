// What the configuration chooses among in RL and DPO: enums with their names, which are verl's, and
// what each choice needs. Torch-free, and apart from the algorithms themselves.
#pragma once

#include "common/enum_names.h"

namespace keel::trainer::rl {

// algorithm.adv_estimator
enum class AdvantageEstimator {
  kGae,                        // Schulman et al. 2016
  kGrpo,                       // Shao et al. 2024; without the deviation Dr.GRPO, Liu et al. 2025
  kRloo,                       // Ahmadian et al. 2024
  kReinforcePlusPlus,          // Hu et al. 2025
  kReinforcePlusPlusBaseline,  // the same with the group's mean for a baseline
  kRemax,                      // Li et al. 2024; the greedy response's score is the baseline
  kGpg,                        // Chu et al. 2025
};
constexpr auto NamesOf(AdvantageEstimator) {
  using enum AdvantageEstimator;
  return EnumNames<AdvantageEstimator>(
      {{kGae, "gae"},
       {kGrpo, "grpo"},
       {kRloo, "rloo"},
       {kReinforcePlusPlus, "reinforce_plus_plus"},
       {kReinforcePlusPlusBaseline, "reinforce_plus_plus_baseline"},
       {kRemax, "remax"},
       {kGpg, "gpg"}});
}

struct AdvantageTraits {
  bool values = false;           // a critic's, per token
  bool greedy_baseline = false;  // the score of a greedy response to each prompt
  bool groups = false;           // one advantage a response, from the scores of its prompt's others
  bool gamma = false;            // takes algorithm.gamma
  bool lam = false;              // takes algorithm.lam
  bool whitened = false;         // over the batch
};
constexpr AdvantageTraits TraitsOf(AdvantageEstimator estimator) {
  switch (estimator) {
    case AdvantageEstimator::kGae:
      return {.values = true, .gamma = true, .lam = true, .whitened = true};
    case AdvantageEstimator::kReinforcePlusPlus:
      return {.gamma = true, .whitened = true};
    case AdvantageEstimator::kReinforcePlusPlusBaseline:
      return {.groups = true, .whitened = true};
    case AdvantageEstimator::kRemax:
      return {.greedy_baseline = true};
    case AdvantageEstimator::kGrpo:
    case AdvantageEstimator::kRloo:
    case AdvantageEstimator::kGpg:
      return {.groups = true};
  }
  return {};
}

// actor.policy_loss.loss_mode
enum class PolicyLossMode {
  kVanilla,  // PPO, Schulman et al. 2017, with dual clip, Ye et al. 2020
  kGspo,     // Zheng et al. 2025: the sequence's mean ratio, clipped
  kCispo,    // MiniMax 2025: the clipped ratio is a weight, the gradient is that of log p
  kGpg,      // Chu et al. 2025: no ratio
};
constexpr auto NamesOf(PolicyLossMode) {
  using enum PolicyLossMode;
  return EnumNames<PolicyLossMode>(
      {{kVanilla, "vanilla"}, {kGspo, "gspo"}, {kCispo, "cispo"}, {kGpg, "gpg"}});
}
// Whether the loss has a ratio to the probabilities at the start of the step.
constexpr bool NeedsOldLogProbs(PolicyLossMode mode) { return mode != PolicyLossMode::kGpg; }

// loss_agg_mode
enum class LossAggregation {
  kTokenMean,            // sum / tokens
  kSeqMeanTokenSum,      // mean over sequences of their sums
  kSeqMeanTokenMean,     // mean over sequences of their means
  kSeqMeanTokenSumNorm,  // mean over sequences of their sums / scale_factor
};
constexpr auto NamesOf(LossAggregation) {
  using enum LossAggregation;
  return EnumNames<LossAggregation>({{kTokenMean, "token-mean"},
                                     {kSeqMeanTokenSum, "seq-mean-token-sum"},
                                     {kSeqMeanTokenMean, "seq-mean-token-mean"},
                                     {kSeqMeanTokenSumNorm, "seq-mean-token-sum-norm"}});
}
constexpr bool TakesScaleFactor(LossAggregation mode) {
  return mode == LossAggregation::kSeqMeanTokenSumNorm;
}

// Estimates of the KL divergence, and verl's names for them: of some there are two.
enum class KlEstimator { kK1, kAbs, kK2, kK3 };
enum class KlName {
  kKl,
  kK1,
  kAbs,
  kMse,
  kK2,
  kLowVarKl,
  kK3,
  kK1Plus,
  kK3Plus,
  kAbsPlus,
  kLowVarKlPlus,
};
constexpr auto NamesOf(KlName) {
  using enum KlName;
  return EnumNames<KlName>({{kKl, "kl"},
                            {kK1, "k1"},
                            {kAbs, "abs"},
                            {kMse, "mse"},
                            {kK2, "k2"},
                            {kLowVarKl, "low_var_kl"},
                            {kK3, "k3"},
                            {kK1Plus, "k1+"},
                            {kK3Plus, "k3+"},
                            {kAbsPlus, "abs+"},
                            {kLowVarKlPlus, "low_var_kl+"}});
}

// An estimator, and whether its gradient is replaced by k2's, whose expectation is the true one
// (the names that end in "+").
struct KlKind {
  KlEstimator estimator = KlEstimator::kK3;
  bool straight_through = false;
};
constexpr KlKind KindOf(KlName name) {
  switch (name) {
    case KlName::kKl:
    case KlName::kK1:
      return {KlEstimator::kK1, false};
    case KlName::kAbs:
      return {KlEstimator::kAbs, false};
    case KlName::kMse:
    case KlName::kK2:
      return {KlEstimator::kK2, false};
    case KlName::kLowVarKl:
    case KlName::kK3:
      return {KlEstimator::kK3, false};
    case KlName::kK1Plus:
      return {KlEstimator::kK1, true};
    case KlName::kAbsPlus:
      return {KlEstimator::kAbs, true};
    case KlName::kK3Plus:
    case KlName::kLowVarKlPlus:
      return {KlEstimator::kK3, true};
  }
  return {};
}

// algorithm.kl_ctrl.type
enum class KlControl {
  kFixed,
  kAdaptive,  // steered to a target, Ziegler et al. 2019
};
constexpr auto NamesOf(KlControl) {
  using enum KlControl;
  return EnumNames<KlControl>({{kFixed, "fixed"}, {kAdaptive, "adaptive"}});
}

// algorithm.rollout_correction.rollout_is
enum class ImportanceLevel { kToken, kSequence };
constexpr auto NamesOf(ImportanceLevel) {
  using enum ImportanceLevel;
  return EnumNames<ImportanceLevel>({{kToken, "token"}, {kSequence, "sequence"}});
}

// dpo.loss_type
enum class DpoLossType {
  kSigmoid,  // Rafailov et al. 2023
  kIpo,      // Azar et al. 2023
};
constexpr auto NamesOf(DpoLossType) {
  using enum DpoLossType;
  return EnumNames<DpoLossType>({{kSigmoid, "sigmoid"}, {kIpo, "ipo"}});
}
constexpr bool TakesLabelSmoothing(DpoLossType type) { return type == DpoLossType::kSigmoid; }

}  // namespace keel::trainer::rl
