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
  kOpo,                        // Hao et al. 2025: the group's mean weighted by length
  kGrpoPassk,                  // Tang et al. 2025: the best of a group, over its second best
  kGrpoVectorized,             // verl's second name of grpo
  kRlooVectorized,             // rloo, but a prompt's only response has an advantage of 0
  kGdpo,                       // arXiv 2601.05242: GRPO of each of several rewards, then their sum
  kOptimalTokenBaseline,       // verl's: a baseline per place in the response
  kTirOptimalTokenBaseline,    // the same, places counted in tokens of the policy alone
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
       {kGpg, "gpg"},
       {kOpo, "opo"},
       {kGrpoPassk, "grpo_passk"},
       {kGrpoVectorized, "grpo_vectorized"},
       {kRlooVectorized, "rloo_vectorized"},
       {kGdpo, "gdpo"},
       {kOptimalTokenBaseline, "optimal_token_baseline"},
       {kTirOptimalTokenBaseline, "tir_optimal_token_baseline"}});
}

struct AdvantageTraits {
  bool values = false;           // a critic's, per token
  bool greedy_baseline = false;  // the score of a greedy response to each prompt
  bool groups = false;           // from the scores of its prompt's other responses
  bool pairs = false;            // each prompt must have two responses or more
  bool sum_pi_squared = false;   // of each token's distribution, and the log-probabilities
  bool components = false;       // several rewards of a response, by name
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
    case AdvantageEstimator::kOpo:
    case AdvantageEstimator::kGrpoVectorized:
    case AdvantageEstimator::kRlooVectorized:
      return {.groups = true};
    case AdvantageEstimator::kGrpoPassk:
      return {.groups = true, .pairs = true};
    case AdvantageEstimator::kGdpo:
      return {.groups = true, .components = true, .whitened = true};
    case AdvantageEstimator::kOptimalTokenBaseline:
    case AdvantageEstimator::kTirOptimalTokenBaseline:
      return {.groups = true, .sum_pi_squared = true};
  }
  return {};
}

// actor.policy_loss.loss_mode
enum class PolicyLossMode {
  kVanilla,     // PPO, Schulman et al. 2017, with dual clip, Ye et al. 2020
  kGspo,        // Zheng et al. 2025: the sequence's mean ratio, clipped
  kCispo,       // MiniMax 2025: the clipped ratio is a weight, the gradient is that of log p
  kGpg,         // Chu et al. 2025: no ratio
  kDppoTv,      // arXiv 2602.04879: tokens that moved too far in probability have no gradient
  kDppoKl,      // the same by the KL divergence of the token against all others
  kSapo,        // Gao et al. 2025: a sigmoid of the ratio instead of a clip
  kClipCov,     // Cui et al. 2025: some tokens of high covariance have no gradient
  kKlCov,       // the same paper: those of the highest covariance have a penalty
  kGeoMean,     // GMPO, Zhao et al. 2025: the geometric mean of a sequence's clipped ratios
  kDro,         // Richemond et al. 2024: log p with a quadratic penalty of the log-ratio
  kVespo,       // arXiv 2602.10693, TRL's: a gamma weight of the sequence's whole ratio
  kBypassMode,  // verl's, of algorithm.rollout_correction: by its loss_type
};
constexpr auto NamesOf(PolicyLossMode) {
  using enum PolicyLossMode;
  return EnumNames<PolicyLossMode>({{kVanilla, "vanilla"},
                                    {kGspo, "gspo"},
                                    {kCispo, "cispo"},
                                    {kGpg, "gpg"},
                                    {kDppoTv, "dppo_tv"},
                                    {kDppoKl, "dppo_kl"},
                                    {kSapo, "sapo"},
                                    {kClipCov, "clip_cov"},
                                    {kKlCov, "kl_cov"},
                                    {kGeoMean, "geo_mean"},
                                    {kDro, "dro"},
                                    {kVespo, "vespo"},
                                    {kBypassMode, "bypass_mode"}});
}
// What a loss has of its own beside the ratio to the probabilities at the start of the step.
struct PolicyLossTraits {
  bool old_log_probs = true;
  bool covariance = false;       // looks at all tokens of the mini-batch: see covariance_choice.h
  bool within_sequence = false;  // a mean over sequences of their means, whatever loss_agg_mode
  bool by_token = true;          // tokens can be left out of it, which have no other part in it
};
constexpr PolicyLossTraits TraitsOf(PolicyLossMode mode) {
  switch (mode) {
    case PolicyLossMode::kGpg:
      return {.old_log_probs = false};
    case PolicyLossMode::kClipCov:
    case PolicyLossMode::kKlCov:
      return {.covariance = true, .by_token = false};
    case PolicyLossMode::kSapo:
      return {.within_sequence = true};
    case PolicyLossMode::kGeoMean:
      return {.within_sequence = true, .by_token = false};
    case PolicyLossMode::kGspo:
      return {.by_token = false};
    default:
      return {};
  }
}

// algorithm.rollout_correction.loss_type: what the loss is where the rollout's log-probabilities
// are the old ones.
enum class BypassLoss {
  kPpoClip,    // the ratio to the rollout, clipped
  kReinforce,  // log p, weighted by the ratio to the rollout as rollout_is says
};
constexpr auto NamesOf(BypassLoss) {
  using enum BypassLoss;
  return EnumNames<BypassLoss>({{kPpoClip, "ppo_clip"}, {kReinforce, "reinforce"}});
}

// loss_agg_mode
enum class LossAggregation {
  kTokenMean,            // sum / tokens
  kTokenSum,             // sum
  kSeqMeanTokenSum,      // mean over sequences of their sums
  kSeqMeanTokenMean,     // mean over sequences of their means
  kSeqMeanTokenSumNorm,  // mean over sequences of their sums / scale_factor
};
constexpr auto NamesOf(LossAggregation) {
  using enum LossAggregation;
  return EnumNames<LossAggregation>({{kTokenMean, "token-mean"},
                                     {kTokenSum, "token-sum"},
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
  kKlPlus,
  kMsePlus,
  kK2Plus,
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
                            {kLowVarKlPlus, "low_var_kl+"},
                            {kKlPlus, "kl+"},
                            {kMsePlus, "mse+"},
                            {kK2Plus, "k2+"}});
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
    case KlName::kKlPlus:
      return {KlEstimator::kK1, true};
    case KlName::kAbsPlus:
      return {KlEstimator::kAbs, true};
    case KlName::kK3Plus:
    case KlName::kLowVarKlPlus:
      return {KlEstimator::kK3, true};
    case KlName::kMsePlus:
    case KlName::kK2Plus:
      return {KlEstimator::kK2, true};
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

// dpo.loss_type; the names are TRL's
enum class DpoLossType {
  kSigmoid,      // Rafailov et al. 2023; with label smoothing Mitchell 2023
  kIpo,          // Azar et al. 2023
  kHinge,        // Zhao et al. 2023 (SLiC)
  kExoPair,      // Ji et al. 2024
  kNcaPair,      // Chen et al. 2024
  kRobust,       // Chowdhury et al. 2024
  kBcoPair,      // Jung et al. 2024
  kSppoHard,     // Wu et al. 2024
  kAot,          // Melnyk et al. 2024: margins, sorted over the batch, against the reference's
  kAotUnpaired,  // the same paper: preferred against rejected answers, each sorted
  kApoZero,      // D'Oosterlinck et al. 2024
  kApoDown,      // the same paper
  kDiscopop,     // Lu et al. 2024
  kSigmoidNorm,  // sigmoid of scores per token
  kSft,          // the preferred answers' negative log-likelihood per token
};
constexpr auto NamesOf(DpoLossType) {
  using enum DpoLossType;
  return EnumNames<DpoLossType>({{kSigmoid, "sigmoid"},
                                 {kIpo, "ipo"},
                                 {kHinge, "hinge"},
                                 {kExoPair, "exo_pair"},
                                 {kNcaPair, "nca_pair"},
                                 {kRobust, "robust"},
                                 {kBcoPair, "bco_pair"},
                                 {kSppoHard, "sppo_hard"},
                                 {kAot, "aot"},
                                 {kAotUnpaired, "aot_unpaired"},
                                 {kApoZero, "apo_zero"},
                                 {kApoDown, "apo_down"},
                                 {kDiscopop, "discopop"},
                                 {kSigmoidNorm, "sigmoid_norm"},
                                 {kSft, "sft"}});
}
struct DpoLossTraits {
  bool label_smoothing = false;
  bool scores = false;  // is of scores that dpo.f_divergence_type makes of the ratios
  bool sorted = false;  // looks at all pairs of the batch: see optimal_transport.h
};
constexpr DpoLossTraits TraitsOf(DpoLossType type) {
  switch (type) {
    case DpoLossType::kSigmoid:
    case DpoLossType::kExoPair:
    case DpoLossType::kRobust:
      return {.label_smoothing = true, .scores = true};
    case DpoLossType::kIpo:
    case DpoLossType::kHinge:
    case DpoLossType::kDiscopop:
    case DpoLossType::kSigmoidNorm:
    case DpoLossType::kSft:
      return {.scores = true};
    case DpoLossType::kAot:
    case DpoLossType::kAotUnpaired:
      return {.label_smoothing = true, .sorted = true};
    case DpoLossType::kNcaPair:
    case DpoLossType::kBcoPair:
    case DpoLossType::kSppoHard:
    case DpoLossType::kApoZero:
    case DpoLossType::kApoDown:
      return {};
  }
  return {};
}

// dpo.f_divergence_type: the distance from the reference, Wang et al. 2023
enum class FDivergence { kReverseKl, kForwardKl, kJsDivergence, kAlphaDivergence };
constexpr auto NamesOf(FDivergence) {
  using enum FDivergence;
  return EnumNames<FDivergence>({{kReverseKl, "reverse_kl"},
                                 {kForwardKl, "forward_kl"},
                                 {kJsDivergence, "js_divergence"},
                                 {kAlphaDivergence, "alpha_divergence"}});
}

}  // namespace keel::trainer::rl
