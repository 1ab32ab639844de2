#include "trainer/config/config_rollout.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <functional>
#include <string>
#include <vector>

#include "trainer/config/config.h"

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
  rollout.dtype = WeightDtype::kBfloat16;
  const auto problems = ValidateRolloutConfig(config);
  ASSERT_EQ(problems.size(), 5u);
  EXPECT_NE(problems[2].find("rollout.dtype bfloat16"), std::string::npos);
  EXPECT_NE(problems[0].find("actor_rollout_ref.rollout.top_k is 0"), std::string::npos);
  EXPECT_NE(problems[1].find("top_p is 0"), std::string::npos);
  EXPECT_NE(problems[3].find("val_kwargs.do_sample"), std::string::npos);
  EXPECT_NE(problems[4].find("1000"), std::string::npos) << problems[4];
  EXPECT_NE(problems[4].find("1024"), std::string::npos) << problems[4];

  rollout.top_k = -1;
  rollout.top_p = 1;
  rollout.val_kwargs.do_sample = true;
  rollout.val_kwargs.temperature = 1;
  rollout.max_num_batched_tokens = 1024;
  rollout.dtype = WeightDtype::kFloat32;
  EXPECT_TRUE(ValidateRolloutConfig(config).empty());
}

// verl samples at 0.6; here it was the likeliest token, without a word.
TEST(ConfigRolloutTest, AValidationThatWouldNotSampleAsItSaysIsRefused) {
  Config config;
  auto& validation = config.actor_rollout_ref.rollout.val_kwargs;
  validation.temperature = 0.6;
  auto problems = ValidateRolloutConfig(config);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("temperature is 0.6 without"), std::string::npos) << problems[0];
  validation.do_sample = true;
  EXPECT_TRUE(ValidateRolloutConfig(config).empty());
  validation.temperature = 0;
  EXPECT_TRUE(ValidateRolloutConfig(config).empty());
  validation.n = 4;
  problems = ValidateRolloutConfig(config);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_NE(problems[0].find("n is 4 at temperature 0"), std::string::npos) << problems[0];
}

TEST(ConfigRolloutTest, ALengthThatDoesNotHoldPromptAndResponseIsRefused) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  config.actor_rollout_ref.rollout.max_model_len = 1024;  // 512 + 512
  EXPECT_TRUE(ValidateRolloutConfig(config).empty());
  config.actor_rollout_ref.rollout.max_model_len = 1023;
  const auto problems = ValidateRolloutConfig(config);
  ASSERT_EQ(problems.size(), 1u);
  for (const char* key : {"actor_rollout_ref.rollout.max_model_len 1023",
                          "data.max_prompt_length 512", "data.max_response_length 512"})
    EXPECT_NE(problems[0].find(key), std::string::npos) << problems[0];
}

bool Says(const std::vector<std::string>& texts, const std::string& part) {
  return std::any_of(texts.begin(), texts.end(),
                     [&](const std::string& text) { return text.find(part) != text.npos; });
}

// Filters make tokens be drawn from a distribution that the trainer does not know.
TEST(ConfigRolloutTest, FiltersAreRemarkedOnAndRefusedWhereTheyWouldBeTakenForOffPolicy) {
  Config config;
  config.trainer.task = TaskKind::kRl;
  RolloutSection& rollout = config.actor_rollout_ref.rollout;
  EXPECT_TRUE(RolloutRemarks(config).empty());
  EXPECT_TRUE(ValidateRolloutConfig(config).empty());

  const std::vector<std::function<void()>> filters = {
      [&] { rollout.top_p = 0.95; }, [&] { rollout.top_k = 20; }, [&] { rollout.min_p = 0.1; },
      [&] { rollout.repetition_penalty = 1.1; }};
  const std::vector<std::string> named = {"top_p 0.95", "top_k 20", "min_p 0.1",
                                          "repetition_penalty 1.1"};
  for (size_t i = 0; i < filters.size(); ++i) {
    rollout = {};
    filters[i]();
    // With what the trainer computes everything goes, and is said.
    config.algorithm.rollout_correction = {};
    EXPECT_TRUE(ValidateRolloutConfig(config).empty());
    ASSERT_EQ(RolloutRemarks(config).size(), 1u);
    EXPECT_TRUE(Says(RolloutRemarks(config), named[i])) << RolloutRemarks(config)[0];
    config.algorithm.rollout_correction.rollout_is = rl::ImportanceLevel::kToken;
    EXPECT_TRUE(ValidateRolloutConfig(config).empty());
    // As verl's files have it: it trains, and says what its metrics will show...
    rollout.logprobs_mode = rollout::LogProbsMode::kProcessed;
    config.algorithm.rollout_correction = {};
    EXPECT_TRUE(ValidateRolloutConfig(config).empty());
    EXPECT_EQ(RolloutRemarks(config).size(), 2u);
    EXPECT_TRUE(Says(RolloutRemarks(config), "policy_logprobs"));
    // ... but a correction would correct the filter.
    for (const char* key : {"rollout_is", "rollout_rs", "m2po_threshold", "bypass_mode"}) {
      auto& correction = config.algorithm.rollout_correction = {};
      if (key == std::string("rollout_is")) correction.rollout_is = rl::ImportanceLevel::kToken;
      if (key == std::string("rollout_rs")) correction.rollout_rs = "token_k1";
      if (key == std::string("m2po_threshold")) correction.m2po_threshold = 0.04;
      if (key == std::string("bypass_mode")) correction.bypass_mode = true;
      const auto problems = ValidateRolloutConfig(config);
      ASSERT_EQ(problems.size(), 1u);
      EXPECT_TRUE(Says(problems, std::string("rollout_correction.") + key)) << problems[0];
      EXPECT_TRUE(Says(problems, named[i])) << problems[0];
      EXPECT_TRUE(Says(problems, "set logprobs_mode to policy_logprobs")) << problems[0];
    }
    // So would the mask of sequences that went too far: on policy nothing is masked.
    config.algorithm.rollout_correction = {};
    auto& threshold = config.actor_rollout_ref.actor.loss.policy_loss.off_policy_mask_threshold =
        0.05;
    const auto problems = ValidateRolloutConfig(config);
    ASSERT_EQ(problems.size(), 1u);
    EXPECT_TRUE(Says(problems, "policy_loss.off_policy_mask_threshold compares")) << problems[0];
    EXPECT_TRUE(Says(problems, named[i])) << problems[0];
    EXPECT_TRUE(Says(problems, "set logprobs_mode to policy_logprobs")) << problems[0];
    // It does without the rollout's log-probabilities.
    rollout.calculate_log_probs = false;
    EXPECT_TRUE(ValidateRolloutConfig(config).empty());
    threshold.reset();
  }

  rollout = {};
  config.algorithm.rollout_correction = {};
  rollout.logprobs_mode = rollout::LogProbsMode::kRaw;
  EXPECT_TRUE(RolloutRemarks(config).empty());
  rollout.temperature = 0.7;
  EXPECT_TRUE(Says(RolloutRemarks(config), "temperature 0.7"));
  config.algorithm.rollout_correction.bypass_mode = true;
  EXPECT_TRUE(Says(ValidateRolloutConfig(config), "temperature 0.7"));
  rollout = {};
  rollout.calculate_log_probs = false;
  EXPECT_TRUE(Says(ValidateRolloutConfig(config), "calculate_log_probs"));
  config.algorithm.rollout_correction = {};
  rollout.temperature = 0;
  EXPECT_TRUE(Says(ValidateRolloutConfig(config), "temperature is 0"));
}

}  // namespace
}  // namespace keel::trainer
