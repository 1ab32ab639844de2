#include "trainer/config/idle_settings.h"

#include <fmt/format.h>

#include <algorithm>
#include <initializer_list>
#include <set>

#include "rewards/reward_check.h"
#include "trainer/config/config.h"

namespace keel::trainer {

namespace {

using Loss = rl::PolicyLossMode;
using Advantage = rl::AdvantageEstimator;

bool IsRl(const Config& c) { return c.trainer.task == TaskKind::kRl; }
bool IsDpo(const Config& c) { return c.trainer.task == TaskKind::kDpo; }

// Of some reward of the run.
bool ScoresBy(const Config& c, bool (*type)(rewards::RewardType)) {
  return rewards::AnyFunction(c.reward, [type](const rewards::VerifierSection& verifier) {
    return type(rewards::TypeOf(verifier));
  });
}

// Of the losses that verl has, one goes by another key.
bool IsReinforce(const Config& c) {
  return c.algorithm.rollout_correction.loss_type == rl::BypassLoss::kReinforce;
}

bool HasLoss(const Config& c, std::initializer_list<rl::PolicyLossMode> modes) {
  return !IsReinforce(c) &&
         std::find(modes.begin(), modes.end(),
                   c.actor_rollout_ref.actor.loss.policy_loss.loss_mode) != modes.end();
}

bool HasEstimator(const Config& c, std::initializer_list<rl::AdvantageEstimator> estimators) {
  return std::find(estimators.begin(), estimators.end(), c.algorithm.adv_estimator) !=
         estimators.end();
}

bool IsSplit(const Config& c) { return c.async_training.placement == Placement::kSplit; }

}  // namespace

const std::vector<Switch>& Switches() {
  const std::string actor = "actor_rollout_ref.actor.", rollout = "actor_rollout_ref.rollout.",
                    policy = actor + "policy_loss.";
  static const std::vector<Switch> switches = {
      {"trainer.task: rl",
       IsRl,
       {"algorithm.",
        "critic.",
        "reward.",
        "async_training.",
        rollout,
        actor + "policy_loss.",
        actor + "ppo_mini_batch_size",
        actor + "ppo_micro_batch_size_per_gpu",
        actor + "ppo_epochs",
        actor + "shuffle",
        actor + "clip_ratio",
        actor + "clip_ratio_low",
        actor + "clip_ratio_high",
        actor + "clip_ratio_c",
        actor + "tau_pos",
        actor + "tau_neg",
        actor + "loss_agg_mode",
        actor + "loss_scale_factor",
        actor + "entropy_coeff",
        actor + "use_adaptive_entropy",
        actor + "entropy_coeff_min",
        actor + "entropy_coeff_max",
        actor + "entropy_coeff_delta",
        actor + "entropy_target",
        actor + "use_kl_loss",
        actor + "kl_loss_coef",
        actor + "kl_loss_type",
        actor + "use_bias_correction_kl",
        "data.filter_overlong_prompts",
        "data.reward_fn_key",
        "data.answer_key",
        "data.max_response_length_key",
        "data.question_instruction",
        "trainer.rollout_data_dir",
        "trainer.validation_data_dir",
        "trainer.rollout_replay_dir",
        "trainer.log_val_generations",
        "trainer.critic_warmup"}},
      {"trainer.task: dpo", IsDpo, {"dpo.", "data.chosen_key", "data.rejected_key"}},
      {"trainer.task: rl or dpo",
       [](const Config& c) { return IsRl(c) || IsDpo(c); },
       {"actor_rollout_ref.ref.", "data.max_prompt_length", "data.max_response_length"}},

      {"trainer.task: pretrain or sft",
       [](const Config& c) { return !IsRl(c) && !IsDpo(c); },
       {"data.max_length", "data.text_key", "data.response_key", "data.messages_key"}},
      {"trainer.task: sft",
       [](const Config& c) { return c.trainer.task == TaskKind::kSft; },
       {"data.train_on"}},
      {"trainer.task: rl, dpo, or sft with data.packing none or best_fit",
       [](const Config& c) {
         const Packing packing = c.data.packing.value_or(Packing::kNone);
         return IsRl(c) || IsDpo(c) || (c.trainer.task == TaskKind::kSft && KeepsWhole(packing));
       },
       {"data.truncation"}},
      {"validation samples (data.val_files or data.val_split)",
       // A file that leaves the data to the command line leaves these, too.
       [](const Config& c) {
         return c.data.train_files.empty() || !c.data.val_files.empty() || c.data.val_split > 0;
       },
       {"trainer.test_freq", "trainer.val_before_train"}},

      {"a critic (critic.enable, or an algorithm.adv_estimator that has one)",
       HasCritic,
       {"critic."}},
      {"a reference (actor_rollout_ref.actor.use_kl_loss or algorithm.use_kl_in_reward)",
       HasReference,
       {"actor_rollout_ref.ref."}},
      {"actor_rollout_ref.model.lora_rank above 0",
       [](const Config& c) { return c.actor_rollout_ref.model.lora_rank > 0; },
       {"actor_rollout_ref.model.lora_alpha", "actor_rollout_ref.model.lora_rank_stabilized",
        "actor_rollout_ref.model.target_modules", "actor_rollout_ref.model.exclude_modules"}},
      {"a reference with memory of its own, which it has where all weights learn (no "
       "actor_rollout_ref.model.lora_rank)",
       [](const Config& c) { return !c.actor_rollout_ref.model.HasAdapters(); },
       {"actor_rollout_ref.ref.megatron.param_offload"}},
      {"actor_rollout_ref.ref.sync_ref_model: true",
       [](const Config& c) { return c.actor_rollout_ref.ref.sync_ref_model; },
       {"actor_rollout_ref.ref.ref_model_mixup_alpha",
        "actor_rollout_ref.ref.ref_model_sync_steps"}},
      {actor + "use_kl_loss: true",
       [](const Config& c) { return c.actor_rollout_ref.actor.loss.use_kl_loss; },
       {actor + "kl_loss_coef", actor + "kl_loss_type"}},
      {"algorithm.use_kl_in_reward: true",
       [](const Config& c) { return c.algorithm.use_kl_in_reward; },
       {"algorithm.kl_penalty", "algorithm.kl_ctrl."}},
      {"algorithm.kl_ctrl.type: adaptive",
       [](const Config& c) { return c.algorithm.kl_ctrl.type == rl::KlControl::kAdaptive; },
       {"algorithm.kl_ctrl.horizon", "algorithm.kl_ctrl.target_kl"}},
      {"algorithm.filter_groups.enable: true",
       [](const Config& c) { return c.algorithm.filter_groups.enable; },
       {"algorithm.filter_groups."}},
      {"algorithm.rollout_correction.rollout_is",
       [](const Config& c) { return c.algorithm.rollout_correction.rollout_is.has_value(); },
       {"algorithm.rollout_correction.rollout_is_threshold",
        "algorithm.rollout_correction.rollout_is_batch_normalize"}},
      {"algorithm.rollout_correction.rollout_rs",
       [](const Config& c) { return c.algorithm.rollout_correction.rollout_rs.has_value(); },
       {"algorithm.rollout_correction.rollout_rs_threshold"}},
      {"reward.overlong_buffer.enable: true",
       [](const Config& c) { return c.reward.overlong_buffer.enable; },
       {"reward.overlong_buffer."}},
      {"a rule (reward.type)",
       [](const Config& c) {
         return ScoresBy(c, [](rewards::RewardType type) { return !rewards::AsksOutside(type); });
       },
       {"reward.format_pattern", "reward.format_score"}},
      {"the rule gsm8k (reward.type: gsm8k or auto)",
       [](const Config& c) {
         return ScoresBy(c, [](rewards::RewardType type) {
           return type == rewards::RewardType::kGsm8k || type == rewards::RewardType::kAuto;
         });
       },
       {"reward.method"}},
      {"reward.type: http",
       [](const Config& c) {
         return ScoresBy(
             c, [](rewards::RewardType type) { return type == rewards::RewardType::kHttp; });
       },
       {"reward.ca_file", "reward.bearer_token_env"}},
      {"a Python function (reward.custom_reward_function)",
       [](const Config& c) {
         return ScoresBy(
             c, [](rewards::RewardType type) { return type == rewards::RewardType::kPython; });
       },
       {"reward.custom_reward_function.", "reward.python", "reward.start_timeout_seconds"}},
      {"a policy loss that clips (" + actor + "policy_loss.loss_mode)",
       [](const Config& c) {
         return !IsReinforce(c) &&
                !HasLoss(c, {Loss::kGpg, Loss::kDro, Loss::kKlCov, Loss::kSapo, Loss::kVespo});
       },
       {actor + "clip_ratio", actor + "clip_ratio_low", actor + "clip_ratio_high"}},
      {actor + "clip_ratio_low or clip_ratio_high null",
       [](const Config& c) {
         const ActorLossSection& loss = c.actor_rollout_ref.actor.loss;
         return !loss.clip_ratio_low || !loss.clip_ratio_high;
       },
       {actor + "clip_ratio"}},
      {actor + "policy_loss.loss_mode: vanilla, dppo_tv or dppo_kl",
       [](const Config& c) {
         return HasLoss(c, {Loss::kVanilla, Loss::kDppoTv, Loss::kDppoKl, Loss::kBypassMode});
       },
       {actor + "clip_ratio_c"}},
      {actor + "policy_loss.loss_mode: sapo",
       [](const Config& c) { return HasLoss(c, {Loss::kSapo}); },
       {actor + "tau_pos", actor + "tau_neg"}},
      {actor + "policy_loss.loss_mode: clip_cov",
       [](const Config& c) { return HasLoss(c, {Loss::kClipCov}); },
       {policy + "clip_cov_ratio", policy + "clip_cov_lb", policy + "clip_cov_ub"}},
      {actor + "policy_loss.loss_mode: kl_cov",
       [](const Config& c) { return HasLoss(c, {Loss::kKlCov}); },
       {policy + "kl_cov_ratio", policy + "ppo_kl_coef"}},
      {actor + "policy_loss.loss_mode: dro",
       [](const Config& c) { return HasLoss(c, {Loss::kDro}); },
       {policy + "dro_beta"}},
      {actor + "policy_loss.loss_mode: vespo",
       [](const Config& c) { return HasLoss(c, {Loss::kVespo}); },
       {policy + "vespo_k_pos", policy + "vespo_lambda_pos", policy + "vespo_k_neg",
        policy + "vespo_lambda_neg"}},
      {actor + "use_adaptive_entropy: true",
       [](const Config& c) { return c.actor_rollout_ref.actor.loss.use_adaptive_entropy; },
       {actor + "entropy_coeff_min", actor + "entropy_coeff_max", actor + "entropy_coeff_delta",
        actor + "entropy_target"}},
      {"algorithm.adv_estimator: grpo, grpo_passk or gdpo",
       [](const Config& c) {
         return HasEstimator(c, {Advantage::kGrpo, Advantage::kGrpoVectorized,
                                 Advantage::kGrpoPassk, Advantage::kGdpo});
       },
       {"algorithm.norm_adv_by_std_in_grpo"}},
      {"algorithm.adv_estimator: gae",
       [](const Config& c) { return HasEstimator(c, {Advantage::kGae}); },
       {"algorithm.lam"}},
      {"algorithm.adv_estimator: gae or reinforce_plus_plus",
       [](const Config& c) {
         return HasEstimator(c, {Advantage::kGae, Advantage::kReinforcePlusPlus});
       },
       {"algorithm.gamma"}},
      {"a reward with a format_pattern",
       [](const Config& c) {
         return rewards::AnyFunction(c.reward, [](const rewards::VerifierSection& verifier) {
           return verifier.format_pattern.has_value();
         });
       },
       {"reward.format_weight"}},
      {rollout + "multi_turn.enable: true",
       [](const Config& c) { return c.actor_rollout_ref.rollout.multi_turn.enable; },
       {rollout + "multi_turn."}},
      {rollout + "val_kwargs.do_sample: true",
       [](const Config& c) { return c.actor_rollout_ref.rollout.val_kwargs.do_sample; },
       {rollout + "val_kwargs.top_k", rollout + "val_kwargs.top_p"}},
      {rollout + "kv_cache_megabytes: null",
       [](const Config& c) { return !c.actor_rollout_ref.rollout.kv_cache_megabytes; },
       {rollout + "gpu_memory_utilization"}},
      {"async_training.placement: split",
       IsSplit,
       {"async_training.min_workers", "async_training.port",
        "async_training.worker_timeout_seconds", "async_training.partial_report_tokens"}},

      {actor + "optim.lr_decay_style: wsd",
       [](const Config& c) {
         return c.actor_rollout_ref.actor.optim.lr_decay_style == LrDecayStyle::kWsd;
       },
       {actor + "optim.lr_wsd_decay_steps"}},
      {"an " + actor + "optim.lr_decay_style other than constant",
       [](const Config& c) {
         return c.actor_rollout_ref.actor.optim.lr_decay_style != LrDecayStyle::kConstant;
       },
       {actor + "optim.min_lr", actor + "optim.lr_decay_steps"}},
      {"a critic.optim.lr_decay_style other than constant",
       [](const Config& c) { return c.critic.optim.lr_decay_style != LrDecayStyle::kConstant; },
       {"critic.optim.min_lr"}},
      {"trainer.keep_best_ckpts above 0",
       [](const Config& c) { return c.trainer.keep_best_ckpts > 0; },
       {"trainer.keep_best_metric", "trainer.keep_best_mode"}},
      {"trainer.logger with tensorboard",
       [](const Config& c) { return c.trainer.LogsTo(LogSink::kTensorboard); },
       {"trainer.tensorboard_dir"}},
      {"trainer.logger with prometheus",
       [](const Config& c) { return c.trainer.LogsTo(LogSink::kPrometheus); },
       {"trainer.prometheus_file"}},
      {"trainer.logger with console",
       [](const Config& c) { return c.trainer.LogsTo(LogSink::kConsole); },
       {"trainer.log_freq"}},
      {"trainer.trace.enable: true",
       [](const Config& c) { return c.trainer.trace.enable; },
       {"trainer.trace."}},
      {"trainer.profile.steps",
       [](const Config& c) { return !c.trainer.profile.steps.empty(); },
       {"trainer.profile.ranks"}},
  };
  return switches;
}

bool Switch::Has(const std::string& path) const {
  return std::any_of(keys.begin(), keys.end(), [&](const std::string& key) {
    return key.ends_with('.') ? path.starts_with(key) : path == key;
  });
}

std::vector<std::string> IdleSettings(const Config& config, const options::Schema& schema) {
  std::vector<std::string> sentences;
  std::set<std::string> said;
  for (const Switch& s : Switches()) {
    if (s.on(config)) continue;
    std::vector<std::string> given;
    for (const options::Option& option : schema.options()) {
      if (option.get() == option.initial || !s.Has(option.path)) continue;
      if (said.insert(option.path).second)
        given.push_back(fmt::format("{} ({})", option.path, option.origin));
    }
    if (given.empty()) continue;
    sentences.push_back(fmt::format("{}: no effect, since {} read with {} alone",
                                    fmt::join(given, ", "),
                                    given.size() == 1 ? "it is" : "they are", s.with));
  }
  return sentences;
}

}  // namespace keel::trainer
