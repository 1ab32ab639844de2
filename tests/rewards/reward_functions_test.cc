// Several rewards with weights: their settings, their sum, and what becomes of a part that fails.

#include "rewards/reward_functions.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <unistd.h>

#include <filesystem>
#include <fstream>

#include "rewards/reward_check.h"
#include "rewards/verifier_factory.h"
#include "rewards/weighted_verifier.h"
#include "tests/rewards/samples.h"

namespace keel::rewards {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Key;

// Scores `factor` times the ground truth; has an error for the sample `fails`.
class Scaled : public Verifier {
 public:
  Scaled(double factor, int64_t fails, std::string answer = "")
      : factor_(factor), fails_(fails), answer_(std::move(answer)) {}
  std::vector<RewardResult> Verify(std::span<const RewardSample> samples) override {
    std::vector<RewardResult> results;
    for (const RewardSample& sample : samples) {
      asked.push_back(sample.id);
      RewardResult result;
      result.id = sample.id;
      result.score = factor_ * sample.ground_truth.get<double>();
      result.extra["acc"] = 1;
      result.answer = answer_;
      if (sample.id == fails_) result = {sample.id, 0, {}, "", "broken"};
      results.push_back(result);
    }
    return results;
  }
  std::vector<int64_t> asked;

 private:
  const double factor_;
  const int64_t fails_;
  const std::string answer_;
};

TEST(WeightedVerifierTest, TheScoreIsTheWeightedSumAndAFailureOfOneIsTheSamples) {
  std::vector<WeightedVerifier::Part> parts;
  parts.push_back({"first", 0.5, std::make_unique<Scaled>(2, 101)});
  parts.push_back({"second", -3, std::make_unique<Scaled>(1, -1, "a")});
  auto* const second = static_cast<Scaled*>(parts.back().verifier.get());
  WeightedVerifier verifier(std::move(parts));
  const auto results = verifier.Verify(Samples(3));
  EXPECT_EQ(results[2].score, 0.5 * 4 - 3 * 2);
  EXPECT_EQ(results[2].extra,
            (std::map<std::string, double>{
                {"first", 4}, {"second", 2}, {"first/acc", 1}, {"second/acc", 1}}));
  EXPECT_EQ(results[2].answer, "a");
  EXPECT_EQ(results[1].error, "reward first: broken");
  EXPECT_EQ(second->asked, (std::vector<int64_t>{100, 102}));
}

TEST(RewardFunctionsTest, AnEntryTakesWhatItDoesNotSayFromTheSection) {
  RewardSection reward;
  reward.timeout_seconds = 3;
  reward.custom_reward_function.path = "mine.py";
  reward.functions = {
      {{"name", "right"}},
      {{"name", "form"}, {"weight", 0.25}, {"type", "exact"}, {"timeout_seconds", 7}},
      {{"name", "own"},
       {"custom_reward_function",
        {{"path", "other.py"}, {"reward_kwargs", {{"k", {1, 2}}, {"t", "3"}}}}}}};
  const auto functions = ValueOrThrow(RewardFunctions(reward));
  ASSERT_EQ(functions.size(), 3u);
  EXPECT_EQ(functions[0].weight, 1);
  EXPECT_EQ(TypeOf(functions[0].verifier), RewardType::kPython);
  EXPECT_EQ(functions[0].verifier.custom_reward_function.path, "mine.py");
  EXPECT_EQ(functions[0].verifier.timeout_seconds, 3);
  EXPECT_EQ(functions[1].weight, 0.25);
  EXPECT_EQ(functions[1].verifier.type, RewardType::kExact);
  EXPECT_EQ(functions[1].verifier.timeout_seconds, 7);
  EXPECT_EQ(functions[2].verifier.custom_reward_function.path, "other.py");
  EXPECT_EQ(functions[2].verifier.custom_reward_function.reward_kwargs,
            Json({{"k", {1, 2}}, {"t", "3"}}));
  EXPECT_TRUE(CheckReward(reward).ok()) << CheckReward(reward).message();
  // A rule among them reads GSM8K's mark.
  EXPECT_FALSE(IsStrictGsm8k(reward, "gsm8k"));
  reward.functions.push_back({{"name", "grade"}, {"type", "gsm8k"}});
  EXPECT_TRUE(IsStrictGsm8k(reward, "gsm8k"));
}

TEST(RewardFunctionsTest, WhatAnEntryCannotBeIsSaidWithItsPlace) {
  const auto problem = [](std::vector<Json> entries) {
    RewardSection reward;
    reward.functions = std::move(entries);
    return CheckReward(reward).message();
  };
  const Json good = {{"name", "a"}, {"type", "math"}};
  EXPECT_THAT(problem({good, {{"type", "math"}}}),
              HasSubstr("reward.functions[1].name: expected a name"));
  EXPECT_THAT(problem({{{"name", "a b"}}}), HasSubstr("found 'a b'"));
  // By these names the sum is asked for, which would be learnt from in their place.
  for (const char* taken : {"reward", "score"}) {
    EXPECT_THAT(problem({good, {{"name", taken}, {"type", "math"}}}),
                HasSubstr(std::string("reward.functions[1].name: ") + taken + " is what"));
  }
  EXPECT_THAT(problem({good, good}), HasSubstr("reward.functions[1].name: a stands twice"));
  EXPECT_THAT(problem({{{"name", "a"}, {"wieght", 2}}}),
              AllOf(HasSubstr("reward.functions[0]"), HasSubstr("wieght"), HasSubstr("weight")));
  EXPECT_THAT(problem({{{"name", "a"}, {"type", "maths"}}}), HasSubstr("did you mean math?"));
  EXPECT_THAT(problem({{{"name", "a"}, {"timeout_seconds", -1}}}), HasSubstr("timeout_seconds"));
  EXPECT_THAT(problem({{{"name", "a"}, {"type", "http"}}}),
              HasSubstr("reward.functions[0].url is not given"));
  EXPECT_THAT(problem({{{"name", "a"}, {"type", "math"}, {"url", "http://x"}}}),
              HasSubstr("reward.functions[0].url belongs to reward.functions[0].type: http"));
  EXPECT_THAT(problem(std::vector<Json>(33, good)), HasSubstr("33 entries"));
}

TEST(RewardFunctionsTest, AFileIsToldByItsContent) {
  const std::string path = std::filesystem::path(::testing::TempDir()) /
                           ("keel_reward_file_" + std::to_string(getpid()));
  RewardSection reward;
  reward.custom_reward_function.path = path;
  EXPECT_THAT(RewardFileDigests(reward).status().message(),
              AllOf(HasSubstr("reward.custom_reward_function.path"), HasSubstr(path)));
  std::ofstream(path) << "x = 1\n";
  const auto first = ValueOrThrow(RewardFileDigests(reward));
  EXPECT_EQ(first.begin()->first, "content of reward.custom_reward_function.path");
  EXPECT_EQ(ValueOrThrow(RewardFileDigests(reward)), first);
  std::ofstream(path) << "x = 2\n";
  EXPECT_NE(ValueOrThrow(RewardFileDigests(reward)), first);
  reward.custom_reward_function.path = ::testing::TempDir();
  EXPECT_FALSE(RewardFileDigests(reward).ok());
  std::filesystem::remove(path);
  reward.custom_reward_function.path.reset();
  EXPECT_TRUE(ValueOrThrow(RewardFileDigests(reward)).empty());
}

TEST(RewardFunctionsTest, AProgramIsToldByItsScript) {
  const std::string path = std::filesystem::path(::testing::TempDir()) /
                           ("keel_reward_" + std::to_string(getpid()) + ".py");
  std::ofstream(path) << "x = 1\n";
  RewardSection reward;
  reward.type = RewardType::kCommand;
  reward.command = {"python3", path};
  const auto first = ValueOrThrow(RewardFileDigests(reward));
  EXPECT_THAT(first, ElementsAre(Key("content of " + path + " of reward.command")));
  std::ofstream(path) << "x = 2\n";
  EXPECT_NE(ValueOrThrow(RewardFileDigests(reward)), first);
  reward.functions = {{{"name", "a"}, {"type", "math"}},
                      {{"name", "b"}, {"type", "command"}, {"command", {"python3", path}}}};
  EXPECT_THAT(ValueOrThrow(RewardFileDigests(reward)),
              ElementsAre(Key("content of " + path + " of reward.functions[1].command")));
  std::filesystem::remove(path);
  EXPECT_THAT(ValueOrThrow(RewardFileDigests(reward)), IsEmpty());
}

}  // namespace
}  // namespace keel::rewards
