// The parts of a Config that only RL and DPO use. Names and meanings are verl's unless said
// otherwise. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "rewards/reward_options.h"
#include "trainer/algorithms/choices.h"
#include "trainer/config/choices.h"
#include "trainer/config/sections.h"

namespace keel::options {
class Schema;
}

namespace keel::trainer {

struct Config;

struct KlControlSection {
  rl::KlControl type = rl::KlControl::kFixed;
  double kl_coef = 0.001;
  int64_t horizon = 10'000;
  double target_kl = 0.1;
};

struct RolloutCorrectionSection {
  std::optional<rl::ImportanceLevel> rollout_is;
  std::string rollout_is_threshold = "2.0";
  bool rollout_is_batch_normalize = false;
  std::optional<std::string> rollout_rs;
  std::optional<std::string> rollout_rs_threshold;
  std::optional<double> m2po_threshold;
  bool bypass_mode = false;
  rl::BypassLoss loss_type = rl::BypassLoss::kPpoClip;

  // What asks for the rollout's log-probabilities, by its key; null: nothing does.
  const char* wants() const {
    return bypass_mode      ? "bypass_mode"
           : rollout_is     ? "rollout_is"
           : rollout_rs     ? "rollout_rs"
           : m2po_threshold ? "m2po_threshold"
                            : nullptr;
  }
};

struct FilterGroupsSection {
  bool enable = false;
  std::string metric = "reward";
  int64_t max_num_gen_batches = 0;
};

struct AlgorithmSection {
  rl::AdvantageEstimator adv_estimator = rl::AdvantageEstimator::kGae;
  double gamma = 1.0;
  double lam = 1.0;
  bool norm_adv_by_std_in_grpo = true;
  bool use_kl_in_reward = false;
  rl::KlName kl_penalty = rl::KlName::kKl;
  KlControlSection kl_ctrl;
  RolloutCorrectionSection rollout_correction;
  FilterGroupsSection filter_groups;
  bool overlong_filtering = false;
  std::vector<std::string> gdpo_reward_keys;
  std::vector<double> gdpo_reward_weights;
};

struct PolicyLossSection {
  rl::PolicyLossMode loss_mode = rl::PolicyLossMode::kVanilla;
  double clip_cov_ratio = 0.0002;
  double clip_cov_lb = 1.0;
  double clip_cov_ub = 5.0;
  double kl_cov_ratio = 0.0002;
  double ppo_kl_coef = 0.1;
  std::optional<double> dro_beta;
  double vespo_k_pos = 2.0;
  double vespo_lambda_pos = 3.0;
  double vespo_k_neg = 3.0;
  double vespo_lambda_neg = 2.0;
  double top_entropy_quantile = 1.0;
  std::optional<double> off_policy_mask_threshold;
};

// The policy's loss and how a step's samples are cut into updates; keys of actor_rollout_ref.actor.
struct ActorLossSection {
  std::optional<int64_t> ppo_mini_batch_size;
  std::optional<int64_t> ppo_micro_batch_size_per_gpu;
  int64_t ppo_epochs = 1;
  bool shuffle = false;
  double clip_ratio = 0.2;
  std::optional<double> clip_ratio_low;
  std::optional<double> clip_ratio_high;
  double clip_ratio_c = 3.0;
  double tau_pos = 1.0;
  double tau_neg = 1.05;
  rl::LossAggregation loss_agg_mode = rl::LossAggregation::kTokenMean;
  std::optional<int64_t> loss_scale_factor;
  double entropy_coeff = 0;
  bool use_adaptive_entropy = false;
  double entropy_coeff_min = 0;
  double entropy_coeff_max = 1;
  double entropy_coeff_delta = 0.005;
  double entropy_target = 0.2;
  bool use_kl_loss = false;
  double kl_loss_coef = 0.001;
  rl::KlName kl_loss_type = rl::KlName::kLowVarKl;
  bool use_bias_correction_kl = false;
  PolicyLossSection policy_loss;
};

// Offload switches of a role that shares the actor's parallel layout.
struct OffloadSection {
  bool param_offload = false;
  bool grad_offload = false;
  bool optimizer_offload = false;
};

struct RefSection {
  OffloadSection megatron;  // param_offload alone has a key
  std::optional<int64_t> log_prob_micro_batch_size_per_gpu;
  bool sync_ref_model = false;
  double ref_model_mixup_alpha = 0.6;
  int64_t ref_model_sync_steps = 512;

  // The reference follows the policy after this step.
  bool SyncsAfter(int64_t step) const { return sync_ref_model && step % ref_model_sync_steps == 0; }
};

struct CriticModelSection {
  std::optional<std::string> path;
};

// AdamW's of a critic, as verl has it: a rate that stays, and no key for how the decay is shaped.
inline OptimSection CriticOptimDefaults() {
  OptimSection optim;
  optim.lr = 1e-5;
  optim.betas = {0.9, 0.999};
  optim.weight_decay = 0.01;
  optim.lr_decay_style = LrDecayStyle::kConstant;
  return optim;
}

struct CriticSection {
  std::optional<bool> enable;  // null: as adv_estimator needs
  CriticModelSection model;
  OptimSection optim = CriticOptimDefaults();
  OffloadSection megatron;
  std::optional<int64_t> ppo_mini_batch_size;
  std::optional<int64_t> ppo_micro_batch_size_per_gpu;
  std::optional<int64_t> ppo_epochs;
  double cliprange_value = 0.5;
  std::optional<rl::LossAggregation> loss_agg_mode;
};

struct DpoSection {
  double beta = 0.1;
  std::vector<rl::DpoLossType> loss_type = {rl::DpoLossType::kSigmoid};
  std::vector<double> loss_weights;  // empty: all 1
  double label_smoothing = 0;
  rl::FDivergence f_divergence_type = rl::FDivergence::kReverseKl;
  double f_alpha_divergence_coef = 0.5;
  double discopop_tau = 0.05;
  std::optional<double> ld_alpha;
  double preference_loss_weight = 1;
  double sft_loss_weight = 0;
  bool use_weighting = false;
};

// Whether there is a critic: if it is asked for, or else if the estimator needs its values.
bool HasCritic(const Config& config);
// Whether there is a reference policy: of DPO always, of RL where a KL divergence is taken from it.
bool HasReference(const Config& config);

// The table's lines for the sections above, bound to `config`: those under actor_rollout_ref, and
// the other roots.
void AddActorRlOptions(Config& config, options::Schema& schema);
void AddRlOptions(Config& config, options::Schema& schema);

// What does not fit together within algorithm, the actor's loss and dpo, a sentence each:
// config_algorithms.cc.
std::vector<std::string> AlgorithmProblems(const Config& config);
std::vector<std::string> DpoProblems(const DpoSection& dpo);
// What does not fit together for trainer.task rl and dpo, as sentences that name the keys.
// `dp`: data-parallel ranks.
std::vector<std::string> ValidateRlConfig(const Config& config, int64_t dp);

}  // namespace keel::trainer
