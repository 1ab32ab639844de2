#include "trainer/config/remarks.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>

#include "rewards/reward_functions.h"
#include "trainer/config/config.h"

namespace keel::trainer {

namespace {

// An estimator that compares the responses to a prompt, where there is one of each.
void RemarkOnLoneResponses(const Config& c, std::vector<std::string>* remarks) {
  const rl::AdvantageEstimator estimator = c.algorithm.adv_estimator;
  if (!rl::TraitsOf(estimator).groups || c.actor_rollout_ref.rollout.n > 1) return;
  remarks->push_back(fmt::format(
      "algorithm.adv_estimator {} compares the responses to a prompt, and actor_rollout_ref."
      "rollout.n 1 generates one: there is nothing to take off its score (docs/algorithms.md)",
      NameOf(estimator)));
}

// GDPO takes the scores of its keys as they are: what is added up to a response's reward counts
// where kWholeReward is one of them.
void RemarkOnComponents(const Config& c, std::vector<std::string>* remarks) {
  const AlgorithmSection& a = c.algorithm;
  if (!rl::TraitsOf(a.adv_estimator).components) return;
  if (std::find(a.gdpo_reward_keys.begin(), a.gdpo_reward_keys.end(), rewards::kWholeReward) !=
      a.gdpo_reward_keys.end())
    return;
  std::vector<std::string> unread;
  if (const auto functions = rewards::RewardFunctions(c.reward); functions.ok()) {
    for (const rewards::RewardFunction& function : *functions)
      if (function.weight != 1) unread.push_back(function.key + "weight");
  }
  const auto& turns = c.actor_rollout_ref.rollout.multi_turn;
  if (turns.enable && turns.add_tool_rewards)
    unread.push_back("actor_rollout_ref.rollout.multi_turn.add_tool_rewards");
  if (unread.empty()) return;
  remarks->push_back(fmt::format(
      "{}: nothing is learnt from it, only critic/score has it, since algorithm.adv_estimator {} "
      "learns from algorithm.gdpo_reward_keys as they are: weigh them by "
      "algorithm.gdpo_reward_weights, or add the key reward, which is the sum",
      fmt::join(unread, ", "), NameOf(a.adv_estimator)));
}

// A replay trains on what was dumped, which was shaped and filtered before.
void RemarkOnReplay(const Config& c, std::vector<std::string>* remarks) {
  if (!c.trainer.rollout_replay_dir) return;
  std::vector<std::string> unread;
  if (c.reward.overlong_buffer.enable) unread.emplace_back("reward.overlong_buffer");
  if (c.algorithm.filter_groups.enable) unread.emplace_back("algorithm.filter_groups");
  if (unread.empty()) return;
  remarks->push_back(
      fmt::format("{}: no response that is replayed (trainer.rollout_replay_dir) is changed or "
                  "left out by it: they are trained on as they were dumped",
                  fmt::join(unread, ", ")));
}

// How many batches a step of filter_groups takes is not known before; the schedule has to be.
void RemarkOnSchedules(const Config& c, std::vector<std::string>* remarks) {
  if (!c.algorithm.filter_groups.enable || c.trainer.total_training_steps) return;
  const OptimSection& actor = c.actor_rollout_ref.actor.optim;
  std::vector<std::string> cut;
  std::string advice = "set trainer.total_training_steps";
  if (actor.lr_decay_style != LrDecayStyle::kConstant && !actor.lr_decay_steps) {
    cut.emplace_back("actor_rollout_ref.actor.optim");
    advice += " or actor_rollout_ref.actor.optim.lr_decay_steps";
  }
  if (HasCritic(c) && c.critic.optim.lr_decay_style != LrDecayStyle::kConstant)
    cut.emplace_back("critic.optim");
  if (cut.empty()) return;
  remarks->push_back(fmt::format(
      "{}: the rate's schedule is as long as the steps of trainer.total_epochs that take one batch "
      "each; those of algorithm.filter_groups that take more make the run shorter, which then ends "
      "before its decay does: {}",
      fmt::join(cut, ", "), advice));
}

}  // namespace

std::vector<std::string> Remarks(const Config& config) {
  std::vector<std::string> remarks;
  if (config.trainer.task != TaskKind::kRl) return remarks;
  RemarkOnLoneResponses(config, &remarks);
  RemarkOnComponents(config, &remarks);
  RemarkOnReplay(config, &remarks);
  RemarkOnSchedules(config, &remarks);
  return remarks;
}

}  // namespace keel::trainer
