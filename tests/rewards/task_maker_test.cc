// The tasks that are made: rows of RL and of SFT.

#include "rewards/task_maker.h"

#include <gtest/gtest.h>

#include <set>
#include <string>

#include "rewards/rational.h"
#include "rewards/reward_check.h"
#include "rewards/reward_rules.h"

namespace keel::rewards {
namespace {

TEST(TaskMakerTest, EverySolutionScoresOneAndWrongOnesDoNot) {
  const auto verifier = ValueOrThrow(MakeRuleVerifier({}));
  for (const std::string& task : TaskNames()) {
    std::set<std::string> prompts;
    for (uint64_t i = 0; i < 300; ++i) {
      const auto problem = MakeTaskProblem(task, DefaultTaskSize(task), 5, i);
      const Json row = MakeTaskRow(task, DefaultTaskSize(task), 5, i, TaskForm::kRl);
      RewardSample sample;
      sample.data_source = row["data_source"];
      sample.ground_truth = row["answer"];
      sample.response = problem.solution;
      const auto result = verifier->Verify({&sample, 1})[0];
      EXPECT_EQ(result.error, "");
      EXPECT_EQ(result.score, 1) << problem.prompt << " " << problem.solution;
      sample.response = task == "countdown" ? "1" : problem.solution + "1";
      EXPECT_EQ(verifier->Verify({&sample, 1})[0].score, 0) << problem.prompt;
      prompts.insert(problem.prompt);
    }
    EXPECT_GT(prompts.size(), task == "parity" ? 25u : 70u) << task;
  }
}

// The rows of a seed are part of what others compare with: they must not change.
TEST(TaskMakerTest, RowsAreAFunctionOfSeedAndNumber) {
  const auto prompt = [](const char* task, uint64_t index) {
    return MakeTaskProblem(task, DefaultTaskSize(task), 1, index).prompt;
  };
  EXPECT_EQ(prompt("addition", 0), "94+48=");
  EXPECT_EQ(prompt("addition", 1), "1+97=");
  EXPECT_EQ(prompt("multiplication", 1), "3*8=");
  EXPECT_EQ(prompt("copy", 1), "copy 950:");
  EXPECT_EQ(prompt("reverse", 1), "reverse 304:");
  EXPECT_EQ(prompt("parity", 1), "parity 1:");
  EXPECT_EQ(prompt("countdown", 0), "make 16 of 1 4 4:");
  EXPECT_NE(MakeTaskProblem("addition", 4, 1, 0).prompt,
            MakeTaskProblem("addition", 4, 2, 0).prompt);
  EXPECT_FALSE(CheckTask("sums", 2).ok());
  EXPECT_FALSE(CheckTask("addition", 10).ok());
  EXPECT_FALSE(CheckTask("countdown", 1).ok());
  EXPECT_TRUE(CheckTask("countdown", 6).ok());
  EXPECT_EQ(MakeTaskRow("addition", 2, 1, 0, TaskForm::kSft).dump(),
            R"({"prompt":"94+48=","response":"142"})");
  for (uint64_t i = 0; i < 50; ++i) {
    const Json pair = MakeTaskRow("parity", 4, 1, i, TaskForm::kDpo);
    const Json said = InMessages(pair);
    EXPECT_EQ(said["prompt"][0]["content"], pair["prompt"]);
    EXPECT_EQ(said["chosen"][0], (Json{{"role", "assistant"}, {"content", pair["chosen"]}}));
    EXPECT_EQ(said["rejected"][0]["content"], pair["rejected"]);
    EXPECT_NE(pair["chosen"], pair["rejected"]);
  }
}

}  // namespace
}  // namespace keel::rewards
