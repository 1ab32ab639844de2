#include "trainer/config/config_rl.h"

#include <fmt/format.h>

#include <string_view>

#include "common/options/schema.h"
#include "rewards/reward_check.h"
#include "rewards/reward_functions.h"
#include "rewards/reward_table.h"
#include "trainer/config/config.h"

namespace keel::trainer {

namespace {

// In the reward an estimate has no gradient, and so none to replace.
std::vector<std::string> PlainKlNames() {
  std::vector<std::string> names;
  for (const auto& [kind, name] : kEnumNames<rl::KlName>) {
    if (!rl::KindOf(kind).straight_through) names.emplace_back(name);
  }
  return names;
}

void AddUpdateOptions(Config& c, options::Schema& s) {
  ActorLossSection& a = c.actor_rollout_ref.actor.loss;
  const std::string actor = "actor_rollout_ref.actor.";
  s.Add(
       actor + "ppo_mini_batch_size", a.ppo_mini_batch_size,
       "Prompts, with all their samples, per update of the weights; null: `data.train_batch_size`, "
       "one update a step.")
      .Range(1)
      .Unit("prompts");
  s.Add(
       actor + "ppo_micro_batch_size_per_gpu", a.ppo_micro_batch_size_per_gpu,
       "Samples per forward and backward of a data-parallel rank; null: "
       "`data.micro_batch_size_per_gpu`. Changes no gradient, but for the balance loss of experts.")
      .Range(1)
      .Unit("sequences");
  s.Add(actor + "ppo_epochs", a.ppo_epochs, "Passes over a step's samples.").Range(1);
  s.Add(actor + "shuffle", a.shuffle, "Another order of the samples in each pass.");
}

void AddLossOptions(Config& c, options::Schema& s) {
  ActorLossSection& a = c.actor_rollout_ref.actor.loss;
  const std::string actor = "actor_rollout_ref.actor.";
  s.Add(actor + "clip_ratio", a.clip_ratio, "PPO's clip range of the ratio around 1.").Range(0);
  s.Add(actor + "clip_ratio_low", a.clip_ratio_low, "Its lower side; null: `clip_ratio`.").Range(0);
  s.Add(actor + "clip_ratio_high", a.clip_ratio_high,
        "Its upper side (DAPO's clip-higher); null: `clip_ratio`.")
      .Range(0);
  s.Add(actor + "clip_ratio_c", a.clip_ratio_c,
        "Dual clip: bound of the loss, in advantages, where the advantage is negative.")
      .Above(1);
  s.Add(actor + "tau_pos", a.tau_pos,
        "`sapo`: how steeply the gate falls with the ratio where the advantage is above 0.")
      .Above(0);
  s.Add(actor + "tau_neg", a.tau_neg, "The same where it is not.").Above(0);
  s.Add(actor + "loss_agg_mode", a.loss_agg_mode,
        "How token losses become one: all counts are of the whole mini-batch over all ranks. "
        "Dr.GRPO "
        "is `seq-mean-token-sum-norm` with `algorithm.norm_adv_by_std_in_grpo: false`. The losses "
        "`sapo` and `geo_mean` are means of sequences' means whatever it says; entropy and KL "
        "terms are as it says.");
  s.Add(actor + "loss_scale_factor", a.loss_scale_factor,
        "Divisor of `seq-mean-token-sum-norm`; null: `data.max_response_length`.")
      .Range(1);
  s.Add(actor + "entropy_coeff", a.entropy_coeff, "Weight of the entropy bonus.").Range(0);
  s.Add(actor + "use_adaptive_entropy", a.use_adaptive_entropy,
        "That weight is steered: it begins with `entropy_coeff`, is larger by "
        "`entropy_coeff_delta` after each update in which the mean entropy of the tokens that are "
        "learnt from was not above `entropy_target`, smaller after any other, and 0 in an update "
        "after one that was above (TRL's; these are its keys).");
  s.Add(actor + "entropy_coeff_min", a.entropy_coeff_min, "Its smallest.").Range(0);
  s.Add(actor + "entropy_coeff_max", a.entropy_coeff_max, "Its largest.").Range(0);
  s.Add(actor + "entropy_coeff_delta", a.entropy_coeff_delta, "Its step.").Range(0);
  s.Add(actor + "entropy_target", a.entropy_target, "The entropy that it is steered to.")
      .Range(0)
      .Unit("nats");
  s.Add(actor + "use_kl_loss", a.use_kl_loss,
        "Add the KL divergence from the reference policy to the loss, as GRPO does.");
  s.Add(actor + "kl_loss_coef", a.kl_loss_coef, "Its weight.").Range(0);
  s.Add(actor + "kl_loss_type", a.kl_loss_type,
        "Its estimator; with `+` it has k2's gradient, which is the true one in expectation.");
  s.Add(actor + "use_bias_correction_kl", a.use_bias_correction_kl,
        "The estimate of a token times its ratio to the policy that acted (TRL's key), so that it "
        "is of the policy that learns, and has its gradient, after a step's first update too.");
}

void AddPolicyLossOptions(Config& c, options::Schema& s) {
  ActorLossSection& a = c.actor_rollout_ref.actor.loss;
  const std::string actor = "actor_rollout_ref.actor.";
  s.Add(actor + "policy_loss.loss_mode", a.policy_loss.loss_mode,
        "`vanilla` is PPO's clipped loss; `gspo` clips per sequence; `cispo` clips the weight and "
        "keeps the gradient; `gpg` is the plain policy gradient; `dppo_tv` and `dppo_kl` bound how "
        "far a probability moves instead of its ratio; `sapo` has a smooth gate for a clip; "
        "`clip_cov` and `kl_cov` keep tokens of high covariance from taking the entropy away; "
        "`geo_mean` is GMPO; `dro` a squared log-ratio's penalty; `vespo` a smooth weight of the "
        "sequence's ratio; `bypass_mode` what `algorithm.rollout_correction.loss_type` says. "
        "docs/algorithms.md has the formulas.");
  PolicyLossSection& p = a.policy_loss;
  const std::string policy = actor + "policy_loss.";
  s.Add(policy + "clip_cov_ratio", p.clip_cov_ratio,
        "`clip_cov`: share of a mini-batch's tokens that have no gradient; one at least.")
      .Above(0);
  s.Add(policy + "clip_cov_lb", p.clip_cov_lb,
        "`clip_cov`: they are drawn from those whose covariance is above this.");
  s.Add(policy + "clip_cov_ub", p.clip_cov_ub, "`clip_cov`: and below this one.");
  s.Add(policy + "kl_cov_ratio", p.kl_cov_ratio,
        "`kl_cov`: share of a mini-batch's tokens, those of the highest covariance, that have a "
        "penalty; one at least.")
      .Above(0);
  s.Add(policy + "ppo_kl_coef", p.ppo_kl_coef,
        "`kl_cov`: that penalty, times the size of the log-ratio.")
      .Range(0);
  s.Add(policy + "dro_beta", p.dro_beta,
        "`dro`: half of this times the squared log-ratio is its penalty; `dro` needs it.")
      .Above(0);
  s.Add(policy + "vespo_k_pos", p.vespo_k_pos,
        "`vespo` (TRL's key): power of the sequence's ratio in its weight, where the advantage is "
        "not below 0.")
      .Range(0);
  s.Add(policy + "vespo_lambda_pos", p.vespo_lambda_pos,
        "`vespo`: how fast the weight falls with the ratio there.")
      .Range(0);
  s.Add(policy + "vespo_k_neg", p.vespo_k_neg, "As `vespo_k_pos`, below 0.").Range(0);
  s.Add(policy + "vespo_lambda_neg", p.vespo_lambda_neg, "As `vespo_lambda_pos`, below 0.")
      .Range(0);
  s.Add(policy + "top_entropy_quantile", p.top_entropy_quantile,
        "Share of a mini-batch's tokens, those at which the policy's entropy is highest, that the "
        "loss and the entropy bonus are of (TRL's key); 1: all. The loss still divides by the "
        "number of all.")
      .Range(0, 1);
  s.Add(policy + "off_policy_mask_threshold", p.off_policy_mask_threshold,
        "Tokens of negative advantage have no loss where the mean over their response of the "
        "log-probabilities that the rollout gave less the current ones is above this (the mask of "
        "DeepSeek-V3.2, TRL's key); null: all have. Without the rollout's, those before the step.");
}

void AddReferenceOptions(Config& c, options::Schema& s) {
  RefSection& ref = c.actor_rollout_ref.ref;
  s.Add("actor_rollout_ref.ref.log_prob_micro_batch_size_per_gpu",
        ref.log_prob_micro_batch_size_per_gpu,
        "Sequences per forward of the reference; null: the actor's micro-batch.")
      .Range(1)
      .Unit("sequences");
  s.Add("actor_rollout_ref.ref.sync_ref_model", ref.sync_ref_model,
        "`dpo` and `rl`: the reference follows the policy (TR-DPO; these are TRL's keys), and "
        "checkpoints hold its weights too. Otherwise it stays as it was at the start.");
  s.Add("actor_rollout_ref.ref.ref_model_mixup_alpha", ref.ref_model_mixup_alpha,
        "The policy's share when it follows; the rest is the reference's own.")
      .Range(0, 1);
  s.Add("actor_rollout_ref.ref.ref_model_sync_steps", ref.ref_model_sync_steps,
        "It follows after every so many steps.")
      .Range(1)
      .Unit("steps");
  s.Add("actor_rollout_ref.ref.megatron.param_offload", ref.megatron.param_offload,
        "The reference's weights to host memory when nothing uses them.");
}

void AddCriticOptions(Config& c, options::Schema& s) {
  CriticSection& k = c.critic;
  s.Add("critic.enable", k.enable, "null: if `algorithm.adv_estimator` is gae.");
  s.Add(
       "critic.model.path", k.model.path,
       "A Hugging Face directory to start from; without a value head (`score.weight`) a fresh one. "
       "null: the actor's.")
      .PerNode();
  s.Add("critic.optim.lr", k.optim.lr, "Peak learning rate; 0 changes no weights.").Range(0);
  s.Add("critic.optim.betas", k.optim.betas, "AdamW's decay rates of the two moments.").Range(0);
  s.Add("critic.optim.eps", k.optim.eps, "AdamW's epsilon.").Above(0);
  s.Add("critic.optim.weight_decay", k.optim.weight_decay, "Decoupled decay.").Range(0);
  s.Add("critic.optim.clip_grad", k.optim.clip_grad,
        "Limit of the global gradient norm; 0 does not clip.")
      .Range(0);
  s.Add("critic.optim.lr_decay_style", k.optim.lr_decay_style, "As the actor's.");
  s.Add("critic.optim.lr_warmup_steps", k.optim.lr_warmup_steps, "As the actor's.")
      .Range(-1)
      .Unit("steps");
  s.Add("critic.optim.min_lr", k.optim.min_lr, "Where the decay ends.").Range(0);
  s.Add("critic.megatron.param_offload", k.megatron.param_offload,
        "As the actor's switch. The parallel sizes are the actor's.");
  s.Add("critic.megatron.grad_offload", k.megatron.grad_offload, "As the actor's switch.");
  s.Add("critic.megatron.optimizer_offload", k.megatron.optimizer_offload,
        "As the actor's switch.");
  s.Add("critic.ppo_mini_batch_size", k.ppo_mini_batch_size, "null: the actor's.")
      .Range(1)
      .Unit("prompts");
  s.Add("critic.ppo_micro_batch_size_per_gpu", k.ppo_micro_batch_size_per_gpu, "null: the actor's.")
      .Range(1)
      .Unit("sequences");
  s.Add("critic.ppo_epochs", k.ppo_epochs, "null: the actor's.").Range(1);
  s.Add("critic.cliprange_value", k.cliprange_value,
        "How far a value may move from the old one before the loss clips it.")
      .Range(0);
  s.Add("critic.loss_agg_mode", k.loss_agg_mode, "null: the actor's.");
}

void AddAdvantageOptions(Config& c, options::Schema& s) {
  AlgorithmSection& a = c.algorithm;
  s.Add("algorithm.adv_estimator", a.adv_estimator, "How rewards become advantages.");
  s.Add("algorithm.gamma", a.gamma, "Discount per token of the policy.").Range(0, 1);
  s.Add("algorithm.lam", a.lam, "GAE's trade of bias for variance.").Range(0, 1);
  s.Add(
      "algorithm.norm_adv_by_std_in_grpo", a.norm_adv_by_std_in_grpo,
      "GRPO divides by the group's standard deviation; Dr.GRPO does not. Also of `grpo_passk` and "
      "`gdpo`.");
  s.Add("algorithm.gdpo_reward_keys", a.gdpo_reward_keys,
        "`gdpo`: the verifier's values that are its rewards, each normalized by itself; `gdpo` "
        "needs them.");
  s.Add("algorithm.gdpo_reward_weights", a.gdpo_reward_weights,
        "`gdpo`: a weight for each of them; []: all 1.");
  s.Add("algorithm.use_kl_in_reward", a.use_kl_in_reward,
        "Take the KL divergence from the reference policy off each token's reward.");
  s.Add("algorithm.kl_penalty", a.kl_penalty, "Its estimator.").OneOf(PlainKlNames());
  s.Add(
      "algorithm.overlong_filtering", a.overlong_filtering,
      "Samples that were cut at `data.max_response_length` take no part in the loss. Their scores "
      "count in their groups (TRL's `mask_truncated_completions`).");
  s.Add("algorithm.kl_ctrl.type", a.kl_ctrl.type,
        "`adaptive` steers the coefficient towards `target_kl` (Ziegler et al. 2019).");
  s.Add("algorithm.kl_ctrl.kl_coef", a.kl_ctrl.kl_coef, "The coefficient, at first.").Range(0);
  s.Add("algorithm.kl_ctrl.horizon", a.kl_ctrl.horizon, "Samples over which `adaptive` acts.")
      .Range(1)
      .Unit("samples");
  s.Add("algorithm.kl_ctrl.target_kl", a.kl_ctrl.target_kl, "KL divergence that `adaptive` wants.")
      .Above(0);
}

void AddCorrectionOptions(Config& c, options::Schema& s) {
  RolloutCorrectionSection& r = c.algorithm.rollout_correction;
  s.Add("algorithm.rollout_correction.rollout_is", r.rollout_is,
        "Weigh the loss by the ratio of trainer and rollout probability, per token or sequence; "
        "null: no.");
  s.Add("algorithm.rollout_correction.rollout_is_threshold", r.rollout_is_threshold,
        "`2.0`: larger weights are cut to it; `0.5_5.0`: weights outside are 0.");
  s.Add("algorithm.rollout_correction.rollout_is_batch_normalize", r.rollout_is_batch_normalize,
        "Scale the weights of a step to a mean of 1.");
  s.Add("algorithm.rollout_correction.rollout_rs", r.rollout_rs,
        "Leave out tokens (`token_k1`, `token_k2`, `token_k3`) or sequences "
        "(`seq_sum_k1` to `seq_sum_k3`, `seq_mean_k1` to `seq_mean_k3`, `seq_max_k2`, "
        "`seq_max_k3`) that diverge further than the threshold; "
        "several, separated by commas, must all hold. With `bypass_mode` each update looks at its "
        "own policy, and what it rejects has no part in its `pg_loss`.");
  s.Add("algorithm.rollout_correction.rollout_rs_threshold", r.rollout_rs_threshold,
        "One for all or one each, separated by commas: `lower_upper` or `upper` of the ratio for "
        "k1, here of the rollout's probability to the trainer's, as verl has it; a bound for k2 "
        "and k3.");
  s.Add("algorithm.rollout_correction.m2po_threshold", r.m2po_threshold,
        "M2PO: leave out the tokens whose log-probabilities of trainer and rollout are furthest "
        "apart, until the mean square of the others' differences is below this (the paper: 0.04). "
        "null: no.")
      .Above(0);
  s.Add("algorithm.rollout_correction.bypass_mode", r.bypass_mode,
        "Take the rollout's log-probabilities for the old ones instead of computing them anew.");
  s.Add("algorithm.rollout_correction.loss_type", r.loss_type,
        "With `bypass_mode`: `ppo_clip` is the loss of `policy_loss.loss_mode`, whose ratio is to "
        "the rollout; `reinforce` is log p, weighted by that ratio as `rollout_is` says.");
}

void AddFilterOptions(Config& c, options::Schema& s) {
  FilterGroupsSection& f = c.algorithm.filter_groups;
  s.Add("algorithm.filter_groups.enable", f.enable,
        "DAPO's dynamic sampling: groups whose samples all score the same teach nothing and are "
        "replaced by further prompts.");
  s.Add(
      "algorithm.filter_groups.metric", f.metric,
      "`reward`, `score`, which is the verifier's, without the penalty of an overlong response, or "
      "the name of a value that the verifier gives.");
  s.Add("algorithm.filter_groups.max_num_gen_batches", f.max_num_gen_batches,
        "Batches that a step may generate before it gives up; 0: no limit.")
      .Range(0);
}

void AddRewardOptions(Config& c, options::Schema& s) {
  rewards::RewardSection& w = c.reward;
  rewards::AddVerifierOptions(s, "reward.", w);
  s.Add("reward.functions", w.functions,
        "Several rewards, whose weighted sum is the score: a list of maps with `name`, `weight` "
        "(default 1) and keys of this section from `type` to `max_retries`; what one does not say "
        "is as the section says.")
      .Secret()
      .OfSamples();
  s.Add("reward.num_workers", w.num_workers,
        "Threads that verify, per rank; each has a child process of its own for a command or a "
        "Python function.")
      .Range(1, 256);
  s.Add("reward.on_error", w.on_error,
        "A sample whose verifier failed: scores 0 (`zero`), takes no part (`exclude`), or ends the "
        "run (`stop`). It is counted apart from samples that score 0. A step or a validation none "
        "of whose samples has a score ends the run, but with `zero_always` and `exclude_always`.");
  s.Add("reward.overlong_buffer.enable", w.overlong_buffer.enable,
        "DAPO's soft punishment of long responses.");
  s.Add("reward.overlong_buffer.len", w.overlong_buffer.len,
        "The last so many tokens of `data.max_response_length` cost reward.")
      .Range(0)
      .Unit("tokens");
  s.Add("reward.overlong_buffer.penalty_factor", w.overlong_buffer.penalty_factor,
        "What they cost at the end of the buffer.")
      .Range(0);
}

void AddDpoOptions(Config& c, options::Schema& s) {
  DpoSection& d = c.dpo;
  s.Add("dpo.beta", d.beta, "Weight of the distance from the reference policy.").Above(0);
  s.Add("dpo.loss_type", d.loss_type,
        "One of TRL's losses, or several, which add up: docs/algorithms.md has the formulas.")
      .OrOne();
  s.Add("dpo.loss_weights", d.loss_weights, "With several: a weight for each; []: all 1.").Range(0);
  s.Add("dpo.label_smoothing", d.label_smoothing,
        "`sigmoid`, `robust`, `exo_pair`, `aot`, `aot_unpaired`: share of pairs that may be "
        "labelled the wrong way round.")
      .Range(0, 0.5);
  s.Add("dpo.f_divergence_type", d.f_divergence_type,
        "The distance from the reference (f-DPO), of the losses that are of a difference of "
        "scores.");
  s.Add("dpo.f_alpha_divergence_coef", d.f_alpha_divergence_coef, "Alpha of `alpha_divergence`.")
      .Range(0);
  s.Add("dpo.discopop_tau", d.discopop_tau,
        "`discopop`: how fast the logistic loss gives way to the exponential one.")
      .Above(0);
  s.Add("dpo.ld_alpha", d.ld_alpha,
        "LD-DPO: weight of an answer's tokens that lie beyond the length of the pair's shorter "
        "answer; null: 1.")
      .Range(0, 1);
  s.Add("dpo.preference_loss_weight", d.preference_loss_weight,
        "Factor of the preference losses together.")
      .Range(0);
  s.Add("dpo.sft_loss_weight", d.sft_loss_weight,
        "Factor of the negative log-likelihood of the preferred answers, per token.")
      .Range(0);
  s.Add("dpo.use_weighting", d.use_weighting,
        "WPO: a pair's preference losses weigh more, the likelier the policy is to have written "
        "both answers itself.");
}

std::vector<std::string> RewardProblems(const Config& c) {
  std::vector<std::string> problems;
  const auto say = [&](std::string text) { problems.push_back(std::move(text)); };
  const rewards::RewardSection& w = c.reward;
  if (const Status usable = rewards::CheckReward(w); !usable.ok()) say(usable.message());
  double request_s = 0;  // of a sample, at most
  if (const auto functions = rewards::RewardFunctions(w); functions.ok()) {
    for (const rewards::RewardFunction& function : *functions) {
      if (!rewards::AsksOutside(TypeOf(function.verifier))) continue;
      request_s += function.verifier.timeout_seconds *
                   static_cast<double>(1 + function.verifier.max_retries);
    }
  }
  if (request_s >= c.trainer.deadline_seconds) {
    say(
        fmt::format("reward.timeout_seconds {} with reward.max_retries {}: a verifier may take {} "
                    "s, but other ranks wait only trainer.deadline_seconds {}, and would take it "
                    "for a hang: raise that",
                    w.timeout_seconds, w.max_retries, request_s, c.trainer.deadline_seconds));
  }
  if (c.algorithm.filter_groups.enable && c.algorithm.filter_groups.max_num_gen_batches == 0 &&
      rewards::GoesOnWithoutAnyScore(w.on_error)) {
    say(
        fmt::format("reward.on_error {} with algorithm.filter_groups.enable would ask for prompts "
                    "without end while the verifier fails: give "
                    "algorithm.filter_groups.max_num_gen_batches a limit above 0",
                    NameOf(w.on_error)));
  }
  if (w.overlong_buffer.enable &&
      (w.overlong_buffer.len < 1 || w.overlong_buffer.len > c.data.max_response_length)) {
    say(fmt::format(
        "reward.overlong_buffer.len {} is not between 1 and data.max_response_length {}",
        w.overlong_buffer.len, c.data.max_response_length));
  }
  return problems;
}

}  // namespace

void AddActorRlOptions(Config& c, options::Schema& s) {
  AddUpdateOptions(c, s);
  AddLossOptions(c, s);
  AddPolicyLossOptions(c, s);
  AddReferenceOptions(c, s);
}

void AddRlOptions(Config& c, options::Schema& s) {
  AddCriticOptions(c, s);
  AddAdvantageOptions(c, s);
  AddCorrectionOptions(c, s);
  AddFilterOptions(c, s);
  AddRewardOptions(c, s);
  AddDpoOptions(c, s);
}

bool HasCritic(const Config& c) {
  return c.critic.enable.value_or(rl::TraitsOf(c.algorithm.adv_estimator).values);
}

bool HasReference(const Config& c) {
  if (c.trainer.task == TaskKind::kDpo) return true;
  return c.trainer.task == TaskKind::kRl &&
         (c.actor_rollout_ref.actor.loss.use_kl_loss || c.algorithm.use_kl_in_reward);
}

std::vector<std::string> ValidateRlConfig(const Config& c, int64_t dp) {
  std::vector<std::string> problems;
  const auto say = [&](std::string text) { problems.push_back(std::move(text)); };
  if (c.trainer.task == TaskKind::kDpo) {
    for (std::string& problem : DpoProblems(c.dpo)) say(std::move(problem));
    if (c.trainer.keep_best_ckpts > 0 && c.trainer.keep_best_metric != BestMetric::kLoss)
      say("trainer.keep_best_metric: dpo validates by val/loss alone");
    return problems;
  }
  if (c.trainer.task != TaskKind::kRl) return problems;
  if (c.trainer.keep_best_ckpts > 0 && (c.trainer.keep_best_metric != BestMetric::kReward ||
                                        c.trainer.keep_best_mode != BestMode::kMax)) {
    say("trainer.keep_best_ckpts: rl validates by reward; set trainer.keep_best_metric to "
        "val/reward "
        "and trainer.keep_best_mode to max");
  }

  const AlgorithmSection& a = c.algorithm;
  const ActorLossSection& loss = c.actor_rollout_ref.actor.loss;
  const int64_t prompts = c.data.train_batch_size;
  const int64_t samples = c.actor_rollout_ref.rollout.n;
  const auto divides = [&](const char* key, std::optional<int64_t> size) {
    if (size && prompts % *size != 0) {
      say(fmt::format(
          "data.train_batch_size {} is not a multiple of {} {}: a step's prompts are cut "
          "into equal updates",
          prompts, key, *size));
    }
    if (size && *size * samples % dp != 0) {
      say(
          fmt::format("{} {} x actor_rollout_ref.rollout.n {} = {} responses are not a multiple of "
                      "the {} data-parallel ranks",
                      key, *size, samples, *size * samples, dp));
    }
  };
  divides("data.train_batch_size", prompts);
  divides("actor_rollout_ref.actor.ppo_mini_batch_size", loss.ppo_mini_batch_size);
  divides("critic.ppo_mini_batch_size", c.critic.ppo_mini_batch_size);
  const rl::AdvantageTraits traits = rl::TraitsOf(a.adv_estimator);
  const std::string_view estimator = NameOf(a.adv_estimator);
  const bool critic = HasCritic(c);
  if (!critic && c.critic.model.path) {
    say("critic.model.path is given, but there is no critic: set critic.enable to true, or leave "
        "it out");
  }
  if (c.critic.optim.min_lr > c.critic.optim.lr &&
      c.critic.optim.lr_decay_style != LrDecayStyle::kConstant)
    say("critic.optim.min_lr is above critic.optim.lr");
  if (!critic && c.trainer.critic_warmup > 0)
    say("trainer.critic_warmup needs a critic: set it to 0, or critic.enable to true");
  for (std::string& problem : AlgorithmProblems(c)) say(std::move(problem));
  if (c.critic.optim.betas.size() != 2 || c.critic.optim.betas[0] >= 1 ||
      c.critic.optim.betas[1] >= 1) {
    say("critic.optim.betas: expected two numbers in [0, 1)");
  }
  for (std::string& problem : RewardProblems(c)) say(std::move(problem));
  if (c.actor_rollout_ref.ref.sync_ref_model && !HasReference(c)) {
    say("actor_rollout_ref.ref.sync_ref_model is true, but there is no reference: set "
        "actor_rollout_ref.actor.use_kl_loss or algorithm.use_kl_in_reward to true, or it to "
        "false");
  }
  if (a.filter_groups.enable && traits.greedy_baseline) {
    say(fmt::format(
        "algorithm.filter_groups.enable needs groups of samples, which {} does not have",
        estimator));
  }
  return problems;
}

}  // namespace keel::trainer
