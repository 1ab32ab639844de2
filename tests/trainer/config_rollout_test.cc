#include "trainer/config_rollout.h"

#include <gtest/gtest.h>

#include "trainer/config.h"

namespace keel::trainer {
namespace {

TEST(ConfigRolloutTest, DefaultsGoTogether) {
  EXPECT_TRUE(ValidateRolloutConfig(Config{}).empty());
}

TEST(ConfigRolloutTest, WhatDoesNotGoTogetherIsRefusedAtOnce) {
  Config config;
  RolloutSection& rollout = config.actor_rollout_ref.rollout;
  rollout.top_k = 0;
  rollout.top_p = 0;
  rollout.val_kwargs.n = 4;
  rollout.enable_chunked_prefill = false;
  rollout.max_num_batched_tokens = 1000;  // below 512 + 512
  const auto problems = ValidateRolloutConfig(config);
  ASSERT_EQ(problems.size(), 4u);
  EXPECT_NE(problems[0].find("actor_rollout_ref.rollout.top_k is 0"), std::string::npos);
  EXPECT_NE(problems[1].find("top_p is 0"), std::string::npos);
  EXPECT_NE(problems[2].find("val_kwargs.do_sample"), std::string::npos);
  EXPECT_NE(problems[3].find("1000"), std::string::npos) << problems[3];
  EXPECT_NE(problems[3].find("1024"), std::string::npos) << problems[3];

  rollout.top_k = -1;
  rollout.top_p = 1;
  rollout.val_kwargs.do_sample = true;
  rollout.max_num_batched_tokens = 1024;
  EXPECT_TRUE(ValidateRolloutConfig(config).empty());
}

}  // namespace
}  // namespace keel::trainer
