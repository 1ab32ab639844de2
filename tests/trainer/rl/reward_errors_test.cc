// What is said of verifiers that fail, how often, and when it ends the run.

#include "trainer/rl/reward_errors.h"

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keel::trainer::rl {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// A response for each text: its error, or "" for one with a score.
std::vector<Response> Responses(const std::vector<std::string>& errors) {
  std::vector<Response> responses;
  for (const std::string& error : errors) {
    responses.push_back({});
    responses.back().row = 40 + static_cast<int64_t>(responses.size());
    responses.back().error = error;
  }
  return responses;
}

struct Judged {
  std::vector<std::string> said;
  std::string end;  // the error's message; "" when the run goes on
};

class RewardErrorsTest : public ::testing::Test {
 protected:
  Judged Judge(RewardErrors& errors, const std::vector<Response>& responses) {
    said_.clear();
    try {
      errors.Judge(responses, "step 3");
    } catch (const Error& error) {
      EXPECT_EQ(error.status().code(), StatusCode::kUnavailable);
      return {said_, error.status().message()};
    }
    return {said_, ""};
  }
  RewardErrors Make(rewards::OnRewardError policy) {
    return RewardErrors(policy, [this](const std::string& text) { said_.push_back(text); });
  }
  std::vector<std::string> said_;
};

TEST_F(RewardErrorsTest, TheFirstOfEachKindIsSaidAndThenThePowersOfTen) {
  RewardErrors errors = Make(rewards::OnRewardError::kZero);
  const Judged first = Judge(errors, Responses({"", "id 7: no", "id 8: no", "gone", ""}));
  EXPECT_EQ(first.end, "");
  ASSERT_EQ(first.said.size(), 2u);
  EXPECT_EQ(first.said[0],
            "no score for 1 of the 5 responses of step 3 (1 so far; reward.on_error: zero): "
            "row 44: gone");
  EXPECT_EQ(first.said[1],
            "no score for 2 of the 5 responses of step 3 (2 so far; reward.on_error: zero): "
            "row 42: id 7: no");
  int said = 0;
  for (int i = 0; i < 500; ++i) {
    const Judged again = Judge(errors, Responses({"", fmt::format("id {}: no", 20 + i)}));
    said += static_cast<int>(again.said.size());
  }
  EXPECT_EQ(said, 2);  // at 10 and at 100
  EXPECT_TRUE(Judge(errors, Responses({"", ""})).said.empty());
}

TEST_F(RewardErrorsTest, WhatIsSaidIsBoundedAndPrintable) {
  RewardErrors errors = Make(rewards::OnRewardError::kZero);
  const std::string evil =
      "\x1b[31m\n2026-01-01T00:00:00Z info forged " + std::string(3 << 20, 'x');
  const Judged one = Judge(errors, Responses({"", evil}));
  ASSERT_EQ(one.said.size(), 1u);
  EXPECT_LE(one.said[0].size(), 600u);
  EXPECT_THAT(one.said[0], HasSubstr("\\x1b[31m\\x0a2026"));
  // A verifier that finds another text for each sample.
  size_t said = 0;
  for (int i = 0; i < 1000; ++i) {
    std::string text = "no test for ";
    for (int rest = i; rest > 0; rest /= 26) text += static_cast<char>('a' + rest % 26);
    said += Judge(errors, Responses({"", text})).said.size();
  }
  EXPECT_LE(said, RewardErrors::kMostKinds + 3);
}

TEST_F(RewardErrorsTest, ABatchWithoutAnyScoreEndsTheRunUnlessSaidInSoManyWords) {
  const auto all = Responses({"gone", "gone", "gone"});
  const auto some = Responses({"gone", "", "gone"});
  for (const rewards::OnRewardError policy :
       {rewards::OnRewardError::kZero, rewards::OnRewardError::kExclude}) {
    RewardErrors errors = Make(policy);
    EXPECT_EQ(Judge(errors, some).end, "");
    EXPECT_EQ(Judge(errors, Responses({"", ""})).end, "");
    EXPECT_EQ(Judge(errors, {}).end, "");
    const std::string end = Judge(errors, all).end;
    EXPECT_THAT(end, HasSubstr("none of the 3 responses of step 3 has a score"));
    EXPECT_THAT(end, HasSubstr("row 41: gone"));
    EXPECT_THAT(end, HasSubstr("zero_always"));
  }
  for (const rewards::OnRewardError policy :
       {rewards::OnRewardError::kZeroAlways, rewards::OnRewardError::kExcludeAlways}) {
    RewardErrors errors = Make(policy);
    const Judged judged = Judge(errors, all);
    EXPECT_EQ(judged.end, "");
    EXPECT_EQ(judged.said.size(), 1u);
  }
  RewardErrors stop = Make(rewards::OnRewardError::kStop);
  EXPECT_EQ(Judge(stop, Responses({"", ""})).end, "");
  EXPECT_THAT(Judge(stop, some).end, HasSubstr("reward.on_error: stop"));
}

// ReMax: the score stands, what it is compared with does not.
TEST_F(RewardErrorsTest, ABaselineWithoutAScoreCounts) {
  auto responses = Responses({"", ""});
  responses[1].baseline_error = "the greedy response: gone";
  EXPECT_EQ(CountFailed(responses), 1);
  RewardErrors errors = Make(rewards::OnRewardError::kZero);
  EXPECT_THAT(Judge(errors, responses).said.at(0), HasSubstr("row 42: the greedy response: gone"));
  responses[0].baseline_error = "the greedy response: gone";
  EXPECT_THAT(Judge(errors, responses).end, HasSubstr("none of the 2"));
}

}  // namespace
}  // namespace keel::trainer::rl
