// What a checkpoint's documents say of a run, and what they cannot say.
#include "trainer/run/run_state.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cstdint>
#include <limits>
#include <vector>

namespace keel::trainer {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

const DataIdentity kData{"digest", 20, 3, true};

RunState State() {
  RunState state;
  state.step = 8;
  state.optimizer_steps = 7;
  state.samples_consumed = 32;
  state.tokens_consumed = 1024;
  state.skipped_steps = 1;
  state.consecutive_skips = 1;
  state.ref_digest = 0xfedcba9876543210;
  return state;
}

TEST(RunStateDocuments, ComeBackAsTheyWere) {
  const RunState state = State();
  const RunState back =
      ValueOrThrow(ParseRunState(TrainerStateJson(state), DataStateJson(state, kData), kData, 8));
  EXPECT_EQ(TrainerStateJson(back), TrainerStateJson(state));
  EXPECT_EQ(DataStateJson(back, kData), DataStateJson(state, kData));
}

TEST(RunStateDocuments, TellTheUpdatesOfMomentsByThemselves) {
  EXPECT_EQ(ValueOrThrow(OptimizerStepsOf(TrainerStateJson(State()))), 7);
  Json other = Json::parse(TrainerStateJson(State()));
  other["format_version"] = 3;
  EXPECT_THAT(OptimizerStepsOf(other.dump()).status().message(), HasSubstr("use a newer Keel"));
  for (const char* wrong : {R"({"format_version": 2})", "[", R"({"optimizer_steps": 7})",
                            R"({"format_version": 2, "optimizer_steps": -1})"}) {
    EXPECT_EQ(OptimizerStepsOf(wrong).status().code(), StatusCode::kInvalidData) << wrong;
  }
  using enum checkpoint::Content;
  const auto belongs = [](const std::vector<checkpoint::Content>& saved) {
    return BelongsToExtra(checkpoint::Contents::Of(saved));
  };
  EXPECT_TRUE(belongs({kModel, kOptimizer, kExtra}));
  EXPECT_TRUE(belongs({kModel}));
  EXPECT_FALSE(belongs({kModel, kOptimizer}));
}

// Digests of weights were made by another rule.
TEST(RunStateDocuments, OfTheFirstFormatHaveNoDigestToCompare) {
  Json earlier = Json::parse(TrainerStateJson(State()));
  earlier["format_version"] = 1;
  const std::string data = DataStateJson(State(), kData);
  const RunState back = ValueOrThrow(ParseRunState(earlier.dump(), data, kData, 8));
  EXPECT_EQ(back.ref_digest, 0u);
  EXPECT_EQ(back.tokens_consumed, State().tokens_consumed);
  for (const int64_t unknown : {0, 3}) {
    earlier["format_version"] = unknown;
    EXPECT_THAT(ParseRunState(earlier.dump(), data, kData, 8).status().message(),
                HasSubstr(fmt::format("format_version {}, this release reads 1 to 2", unknown)));
  }
}

TEST(RunStateDocuments, NameTheContentsThatTheRunHasRead) {
  const ReadContents contents = {{"content of data.val_files", "3 samples with digest ab"},
                                 {"the reward", "digest cd"}};
  const std::string text = DataStateJson(State(), kData, contents);
  EXPECT_EQ(ValueOrThrow(ContentsOf(text)), contents);
  EXPECT_TRUE(ParseRunState(TrainerStateJson(State()), text, kData, 8).ok());
  EXPECT_TRUE(ValueOrThrow(ContentsOf(DataStateJson(State(), kData))).empty());
  for (const char* wrong : {R"({"contents": 1})", R"({"contents": {"a": 1}})", "["}) {
    EXPECT_EQ(ContentsOf(wrong).status().code(), StatusCode::kInvalidData) << wrong;
  }
}

// Each number of each document, in turn, as no run leaves it.
TEST(RunStateDocuments, NumbersThatNoRunComesToAreRefusedByName) {
  const Json trainer = Json::parse(TrainerStateJson(State()));
  const Json data = Json::parse(DataStateJson(State(), kData));
  int refused = 0;
  for (const bool of_data : {false, true}) {
    for (const auto& [key, value] : (of_data ? data : trainer).items()) {
      if (!value.is_number() || key == "seed") continue;  // any seed is one, and is compared
      for (const Json& wrong : {Json(-1), Json(int64_t{1} << 62), Json(kMostCounted + 1),
                                Json(std::numeric_limits<int64_t>::min()),
                                Json(std::numeric_limits<uint64_t>::max()), Json(1.5), Json("8")}) {
        Json changed = of_data ? data : trainer;
        changed[key] = wrong;
        const Result<RunState> parsed = ParseRunState((of_data ? trainer : changed).dump(),
                                                      (of_data ? changed : data).dump(), kData, 8);
        ASSERT_EQ(parsed.status().code(), StatusCode::kInvalidData) << key << ": " << wrong;
        EXPECT_THAT(
            parsed.status().message(),
            AllOf(HasSubstr(of_data ? "data_state.json" : "trainer_state.json"), HasSubstr(key)));
        ++refused;
      }
    }
  }
  EXPECT_EQ(refused, 7 * 9);
}

TEST(RunStateDocuments, NumbersThatContradictEachOtherAreRefused) {
  const auto parse = [](const RunState& state, int64_t step) {
    return ParseRunState(TrainerStateJson(state), DataStateJson(state, kData), kData, step)
        .status();
  };
  const Status other_step = parse(State(), 6);
  EXPECT_EQ(other_step.code(), StatusCode::kInvalidData);
  EXPECT_THAT(other_step.message(),
              HasSubstr("trainer_state.json: step is 8, the checkpoint's manifest says 6"));
  RunState skips = State();
  skips.consecutive_skips = 2;
  EXPECT_THAT(parse(skips, 8).message(), HasSubstr("consecutive_skips is 2"));
}

}  // namespace
}  // namespace keel::trainer
