// Loader by itself: what its header promises beside what the tests of whole loads show.

#include "checkpoint/load/loader.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <atomic>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/names.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/checkpoint/support/view_file_system.h"

namespace keel::checkpoint::testing {
namespace {

using ::testing::HasSubstr;

class LoaderTest : public ::testing::Test {
 protected:
  LoaderTest() : cut_({.world = 2}, 1, ModelSize::kTiny) {}

  void Save(int64_t step, const std::string& run_id = "test-run") {
    cut_.Fill(MakeTrainingState(static_cast<uint64_t>(step), ModelSize::kTiny));
    CheckpointOptions options = SmallOptions();
    options.run_id = run_id;
    disk_.Erase("run_id");
    ASSERT_EQ(SaveOn(disk_, cut_, step, options).ToString(), "ok");
  }

  struct Outcome {
    Status status;
    std::optional<LoadRecord> record;
    std::vector<std::string> announced;  // by rank 0
  };

  // Rank 0's; the others came to the same. Memory is cleared before.
  Outcome Load(const LoaderOptions& options, const std::string& path = "") {
    return LoadFrom(disk_, options, path);
  }
  Outcome LoadFrom(FileSystem& disk, const LoaderOptions& options, const std::string& path = "") {
    cut_.Clear(0x5A);
    std::vector<Outcome> outcomes(static_cast<size_t>(cut_.world()));
    RunRanks(cut_.world(), [&](int rank, Coordinator& coordinator) {
      Logger log(Quiet());
      Loader loader(disk, coordinator, log, options);
      LoadRequest request;
      request.resume_path = path;
      request.roles = cut_.Roles(rank);
      request.config_digest = "config-a";
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      auto loaded = loader.Load("load", request);
      outcome.status = loaded.status();
      if (loaded.ok()) outcome.record = std::move(loaded).value();
      outcome.announced = loader.announced();
    });
    for (const Outcome& one : outcomes) {
      EXPECT_EQ(one.status.ToString(), outcomes[0].status.ToString());
      EXPECT_EQ(one.record.has_value(), outcomes[0].record.has_value());
      if (one.record && outcomes[0].record) {
        EXPECT_EQ(one.record->step, outcomes[0].record->step);
        EXPECT_EQ(one.record->documents, outcomes[0].record->documents);
        EXPECT_EQ(one.record->skipped.size(), outcomes[0].record->skipped.size());
      }
    }
    return outcomes[0];
  }

  bool Holds(int64_t step) {
    return cut_.FirstDifference(MakeTrainingState(static_cast<uint64_t>(step), ModelSize::kTiny)) ==
           "";
  }

  static LoaderOptions OfRun(const std::string& run_id) {
    LoaderOptions options;
    options.deadline = std::chrono::milliseconds(20'000);
    options.visibility_grace = std::chrono::milliseconds(0);
    options.run_id = run_id;
    return options;
  }

  SimFileSystem disk_;
  Cut cut_;
};

TEST_F(LoaderTest, AnEmptyFolderIsNoErrorAndLeavesMemoryAlone) {
  const Outcome loaded = Load(OfRun("test-run"));
  EXPECT_EQ(loaded.status.ToString(), "ok");
  EXPECT_FALSE(loaded.record.has_value());
  for (const RankPart& part : cut_.model) {
    for (const auto& block : part.memory) EXPECT_EQ((*block)[0], std::byte{0x5A});
  }
}

TEST_F(LoaderTest, TheNewestOfItsRunIsTakenAndAnyRunsWithoutAName) {
  Save(3);
  Save(8, "another");
  const Outcome own = Load(OfRun("test-run"));
  ASSERT_EQ(own.status.ToString(), "ok");
  EXPECT_EQ(own.record->step, 3);
  EXPECT_TRUE(Holds(3));
  const Outcome any = Load(OfRun(""));
  ASSERT_EQ(any.status.ToString(), "ok");
  EXPECT_EQ(any.record->step, 8);
  EXPECT_TRUE(Holds(8));
}

TEST_F(LoaderTest, DamageOnTheWayGoesOnWithTheNextOlderOneAndIsNamed) {
  Save(3);
  Save(8);
  for (const std::string& file : disk_.AllFiles()) {
    if (!file.starts_with(StepDirectory(8) + "/actor/model/")) continue;
    std::string content = disk_.Content(file);
    content.back() = static_cast<char>(content.back() ^ 1);
    disk_.SetContent(file, content);
  }
  const Outcome loaded = Load(OfRun("test-run"));
  ASSERT_EQ(loaded.status.ToString(), "ok");
  EXPECT_EQ(loaded.record->step, 3);
  ASSERT_EQ(loaded.record->skipped.size(), 1u);
  EXPECT_EQ(loaded.record->skipped[0].directory, StepDirectory(8));
  EXPECT_TRUE(Holds(3));
}

TEST_F(LoaderTest, WhatMayNotBeReadIsPassedOverAndNamed) {
  Save(3);
  Save(8);
  const std::string closed = StepDirectory(8) + "/actor/model/rank_00000.safetensors";
  disk_.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
    return operation == "open" && path == closed ? Status::FromErrno(EACCES, operation, path)
                                                 : Status::Ok();
  });
  const Outcome loaded = Load(OfRun("test-run"));
  ASSERT_EQ(loaded.status.ToString(), "ok");
  EXPECT_EQ(loaded.record->step, 3);
  ASSERT_EQ(loaded.record->skipped.size(), 1u);
  EXPECT_THAT(loaded.record->skipped[0].reason,
              ::testing::AllOf(HasSubstr(closed), HasSubstr("denied")));
  EXPECT_TRUE(Holds(3));
}

// A run that keeps one publishes step 8 and removes step 3 while a reader looks around.
TEST_F(LoaderTest, WhatIsRemovedBesideALoadForANewerOneIsNoDamage) {
  Save(3);
  Save(8);
  for (const bool sees_the_older : {true, false}) {
    ViewFileSystem beside(disk_);
    std::atomic<bool> moved = false;
    beside.SetHidden([&](std::string_view path) {
      if (path == kTrackerName) moved = true;  // is read once the folder has been listed
      return (path.starts_with(StepDirectory(3)) && (moved || !sees_the_older)) ||
             (path.starts_with(StepDirectory(8)) && !moved);
    });
    const Outcome loaded = LoadFrom(beside, OfRun("test-run"));
    ASSERT_EQ(loaded.status.ToString(), "ok") << sees_the_older;
    ASSERT_TRUE(loaded.record.has_value()) << sees_the_older;
    EXPECT_EQ(loaded.record->step, 8);
    EXPECT_EQ(loaded.record->skipped.size(), 0u);
    EXPECT_TRUE(Holds(8));
  }
}

TEST_F(LoaderTest, APathIsThatOneOrAnErrorThatNamesIt) {
  Save(3);
  Save(8);
  const Outcome older = Load(OfRun("test-run"), StepDirectory(3));
  ASSERT_EQ(older.status.ToString(), "ok");
  EXPECT_TRUE(Holds(3));
  const Outcome missing = Load(OfRun("test-run"), StepDirectory(4));
  EXPECT_FALSE(missing.status.ok());
  EXPECT_THAT(missing.status.message(), HasSubstr(StepDirectory(4)));
}

// A ledger of samples may be larger than the store's limit for a text.
TEST_F(LoaderTest, DocumentsOfAnySizeAreAnnouncedInParts) {
  Save(3);
  const Outcome whole = Load(OfRun("test-run"));
  ASSERT_EQ(whole.status.ToString(), "ok");
  for (const int64_t part_bytes : {1, 7, 64}) {
    LoaderOptions options = OfRun("test-run");
    options.part_bytes = part_bytes;
    const Outcome parts = Load(options);  // which compares what the ranks got
    ASSERT_EQ(parts.status.ToString(), "ok");
    EXPECT_EQ(parts.record->documents, whole.record->documents);
    EXPECT_GT(parts.announced.size(), whole.announced.size());
  }
}

// No other limit is there for what a save wrote.
TEST_F(LoaderTest, ADocumentIsReadUpToTheSizeThatTheManifestLists) {
  Save(3);
  const std::string path = StepDirectory(3) + "/trainer_state.json";
  const std::string saved = disk_.Content(path);
  const StepReader reader = ValueOrThrow(StepReader::OpenIndex(disk_, StepDirectory(3)));
  EXPECT_EQ(ValueOrThrow(reader.ReadText("trainer_state.json")), saved);
  disk_.SetContent(path, saved + "x");
  const Status grown = reader.ReadText("trainer_state.json").status();
  EXPECT_EQ(grown.code(), StatusCode::kDataLoss);
  EXPECT_THAT(grown.message(), HasSubstr("at most " + std::to_string(saved.size())));
}

// The store of a job keeps what was put there: who announces says what, so that it can be taken
// away when everyone has read it.
TEST_F(LoaderTest, WhatWasAnnouncedIsListedToBeRetracted) {
  Save(3);
  const Outcome loaded = Load(OfRun("test-run"));
  ASSERT_EQ(loaded.status.ToString(), "ok");
  ASSERT_FALSE(loaded.announced.empty());
  for (const std::string& tag : loaded.announced) EXPECT_THAT(tag, HasSubstr("load"));
}

}  // namespace
}  // namespace keel::checkpoint::testing
