// Dumps of responses: what a replay may learn from.
#include "trainer/data/rollout_batch.h"

#include <gmock/gmock.h>
#include <unistd.h>

#include <filesystem>
#include <string>
#include <vector>

namespace keel::trainer::rl {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;

constexpr DumpShape kShape{100, 2, 2};

class RolloutDump : public ::testing::Test {
 protected:
  RolloutDump() { std::filesystem::create_directories(folder_); }
  ~RolloutDump() override { std::filesystem::remove_all(folder_); }

  // Two prompts with two responses each; the lengths differ.
  static std::vector<Response> Responses() {
    std::vector<Response> all(4);
    for (size_t i = 0; i < all.size(); ++i) {
      all[i].position = static_cast<int64_t>(i / 2);
      all[i].sample = static_cast<int>(i % 2);
      all[i].prompt = {1, 2};
      all[i].tokens.assign(i + 1, 7);
      all[i].log_probs.assign(i + 1, -0.5f);
      all[i].finish = "stop";
    }
    return all;
  }
  Result<RolloutBatch> Read(const std::vector<Response>& responses, bool log_probs) {
    const std::string path = folder_ + "/1.jsonl";
    ThrowIfError(WriteDump(path, RolloutBatch::Make(responses)));
    DumpShape shape = kShape;
    shape.log_probs = log_probs;
    return ReadDump(path, shape);
  }

  const std::string folder_ =
      std::filesystem::temp_directory_path() / ("keel_dump_test_" + std::to_string(getpid()));
};

TEST_F(RolloutDump, ComesBackAsItWas) {
  for (const bool log_probs : {false, true}) {
    const RolloutBatch batch = ValueOrThrow(Read(Responses(), log_probs));
    EXPECT_EQ(batch.rollout_log_probs().size(), 10u);
    EXPECT_EQ(batch.response_tokens(), 10);
  }
}

// Cut off, and failed: of the first the score counts still. What is rejected counts nowhere.
TEST(RolloutBatchTest, WhatIsLeftOutOfTheLossMayBeComparedStill) {
  std::vector<Response> responses(3);
  for (size_t i = 0; i < responses.size(); ++i) {
    responses[i].sample = static_cast<int>(i);
    responses[i].tokens = {7, 8, 9};
  }
  responses[0].given = {{1, 2}};
  RolloutBatch batch = RolloutBatch::Make(responses);
  EXPECT_EQ(batch.compared, batch.mask);
  batch.LeaveOut(0, true);
  batch.LeaveOut(1, false);
  EXPECT_THAT(batch.mask, ElementsAre(0, 0, 0, 0, 0, 0, 1, 1, 1));
  EXPECT_THAT(batch.compared, ElementsAre(1, 0, 1, 0, 0, 0, 1, 1, 1));
  batch.Reject({0, 0, 0, 0, 0, 0, 1, 0, 1});
  EXPECT_THAT(batch.mask, ElementsAre(0, 0, 0, 0, 0, 0, 1, 0, 1));
  EXPECT_THAT(batch.compared, ElementsAre(1, 0, 1, 0, 0, 0, 1, 0, 1));
}

TEST_F(RolloutDump, WhatWasGivenIsNotLearntFrom) {
  std::vector<Response> responses = Responses();
  responses[1].given = {{0, 1}};
  responses[3].given = {{1, 2}};
  responses[3].tools = {2, 1, 1, 0, {0.25}};
  const RolloutBatch batch = ValueOrThrow(Read(responses, true));
  EXPECT_EQ(batch.mask, (std::vector<uint8_t>{1, 0, 1, 1, 1, 1, 1, 0, 1, 1}));
  EXPECT_EQ(batch.responses[3].given, responses[3].given);
  EXPECT_EQ(batch.responses[3].tools, responses[3].tools);
  EXPECT_TRUE(batch.responses[0].given.empty());

  for (const TokenRange range : {TokenRange{0, 5}, TokenRange{2, 2}, TokenRange{-1, 1}}) {
    responses[3].given = {range};
    const Status status = Response::FromJson(responses[3].ToJson(), "line 4").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidData);
    EXPECT_THAT(status.message(), AllOf(HasSubstr("line 4"), HasSubstr("given")));
  }
}

// One response without them shifted those of all that followed, and the last ones were read past
// the end.
TEST_F(RolloutDump, NumbersAreNotMadeToFit) {
  const Json good = Responses()[0].ToJson();
  ASSERT_TRUE(Response::FromJson(good, "line 1").ok());
  for (const auto& [key, value] :
       std::vector<std::pair<std::string, Json>>{{"prompt_ids", {1, 2.5}},
                                                 {"response_ids", {1, int64_t{1} << 32}},
                                                 {"response_ids", {-1}},
                                                 {"sample", int64_t{1} << 32},
                                                 {"sample", 0.5},
                                                 {"position", 1e30},
                                                 {"weight_version", "1"}}) {
    Json bad = good;
    bad[key] = value;
    const Status status = Response::FromJson(bad, "line 1").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidData) << bad[key];
    EXPECT_NE(status.message().find(key), std::string::npos) << status.message();
    EXPECT_NE(status.message().find("line 1"), std::string::npos) << status.message();
  }
}

TEST_F(RolloutDump, LogProbsAreThereForAllOrForNone) {
  std::vector<Response> some = Responses();
  some[1].log_probs.clear();
  for (const bool log_probs : {false, true}) {
    const Status status = Read(some, log_probs).status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidData);
    EXPECT_THAT(status.message(),
                AllOf(HasSubstr("position 0, sample 1"), HasSubstr("rollout_log_probs")));
  }
  std::vector<Response> none = Responses();
  for (Response& r : none) r.log_probs.clear();
  EXPECT_TRUE(Read(none, false).ok());
  EXPECT_EQ(Read(none, true).status().code(), StatusCode::kInvalidData);
}

}  // namespace
}  // namespace keel::trainer::rl
