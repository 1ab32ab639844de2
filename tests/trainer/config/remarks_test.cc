#include "trainer/config/remarks.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <utility>

namespace keel::trainer {
namespace {

bool Remarked(const std::vector<std::string>& remarks, const std::string& part) {
  return std::any_of(remarks.begin(), remarks.end(), [&](const std::string& remark) {
    return remark.find(part) != std::string::npos;
  });
}

TEST(RemarksTest, AnEstimatorThatComparesIsNotedWhereThereIsNothingToCompare) {
  Config config;
  EXPECT_TRUE(Remarks(config).empty());  // no RL
  config.trainer.task = TaskKind::kRl;
  for (const auto& [estimator, noted] : {std::pair(rl::AdvantageEstimator::kGrpo, true),
                                         {rl::AdvantageEstimator::kRloo, true},
                                         {rl::AdvantageEstimator::kGae, false},
                                         {rl::AdvantageEstimator::kRemax, false}}) {
    config.algorithm.adv_estimator = estimator;
    config.actor_rollout_ref.rollout.n = 1;
    EXPECT_EQ(Remarks(config).size(), noted ? 1u : 0u);
    config.actor_rollout_ref.rollout.n = 2;
    EXPECT_TRUE(Remarks(config).empty());
  }
}

TEST(RemarksTest, WhatGdpoDoesNotLearnFromIsNoted) {
  Config config;
  config.actor_rollout_ref.rollout.n = 2;
  config.trainer.task = TaskKind::kRl;
  config.algorithm.gdpo_reward_keys = {"a", "b"};
  config.reward.functions = {{{"name", "a"}, {"type", "math"}},
                             {{"name", "b"}, {"type", "exact"}, {"weight", 0.5}}};
  config.actor_rollout_ref.rollout.multi_turn.enable = true;
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGrpo;
  EXPECT_TRUE(Remarks(config).empty());
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGdpo;
  ASSERT_EQ(Remarks(config).size(), 1u);
  EXPECT_EQ(Remarks(config)[0].find("reward.functions[1].weight: nothing is learnt"), 0u);
  config.actor_rollout_ref.rollout.multi_turn.add_tool_rewards = true;
  EXPECT_TRUE(Remarked(Remarks(config), "multi_turn.add_tool_rewards: nothing is learnt"));
  config.algorithm.gdpo_reward_keys.push_back("reward");  // the weighted sum, with the tools'
  EXPECT_TRUE(Remarks(config).empty());
}

TEST(RemarksTest, WhatChangesNoReplayedResponseIsNoted) {
  Config config;
  config.actor_rollout_ref.rollout.n = 2;
  config.trainer.task = TaskKind::kRl;
  config.trainer.total_training_steps = 4;
  config.reward.overlong_buffer.enable = true;
  config.algorithm.filter_groups.enable = true;
  EXPECT_TRUE(Remarks(config).empty());
  config.trainer.rollout_replay_dir = "dump";
  EXPECT_TRUE(Remarked(Remarks(config), "reward.overlong_buffer, algorithm.filter_groups: "));
  config.reward.overlong_buffer.enable = config.algorithm.filter_groups.enable = false;
  EXPECT_TRUE(Remarks(config).empty());
}

TEST(RemarksTest, AScheduleThatFilteredEpochsEndBeforeIsNoted) {
  Config config;
  config.actor_rollout_ref.rollout.n = 2;
  config.trainer.task = TaskKind::kRl;
  config.trainer.total_epochs = 3;
  config.algorithm.adv_estimator = rl::AdvantageEstimator::kGrpo;
  config.algorithm.filter_groups.enable = true;
  OptimSection& optim = config.actor_rollout_ref.actor.optim;
  optim.lr_decay_style = LrDecayStyle::kCosine;
  EXPECT_TRUE(Remarked(Remarks(config),
                       "set trainer.total_training_steps or "
                       "actor_rollout_ref.actor.optim.lr_decay_steps"));
  optim.lr_decay_steps = 7;
  EXPECT_TRUE(Remarks(config).empty());
  optim.lr_decay_steps.reset();
  optim.lr_decay_style = LrDecayStyle::kConstant;
  EXPECT_TRUE(Remarks(config).empty());
  config.critic.enable = true;
  config.critic.optim.lr_decay_style = LrDecayStyle::kLinear;
  EXPECT_TRUE(Remarked(Remarks(config), "critic.optim: the rate's schedule"));
  config.trainer.total_training_steps = 5;
  EXPECT_TRUE(Remarks(config).empty());
}

}  // namespace
}  // namespace keel::trainer
