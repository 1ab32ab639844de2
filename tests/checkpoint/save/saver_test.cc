// Saver by itself: what its header promises beside what Checkpointer's tests show of whole saves.

#include "checkpoint/save/saver.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <atomic>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/format/names.h"
#include "checkpoint/run/tracker.h"
#include "checkpoint/save/snapshot.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint::testing {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

constexpr uint64_t kSeed = 3;

// One save of a state that stays as it is, by a saver of every rank.
class SaverTest : public ::testing::Test {
 protected:
  SaverTest() : cut_({.world = 2}, 1, ModelSize::kTiny) {
    cut_.Fill(MakeTrainingState(kSeed, ModelSize::kTiny));
  }

  struct Outcome {
    Status status;
    SaveRecord record;
  };

  // Rank 0's. `prepare` is called with rank 0's saver before the save.
  Outcome Save(int64_t step, const std::function<Status()>& guard = Status::Ok,
               const std::function<void(Saver&)>& prepare = {}) {
    std::vector<Outcome> outcomes(static_cast<size_t>(cut_.world()));
    const int64_t sequence = ++sequence_;
    RunRanks(cut_.world(), [&](int rank, Coordinator& coordinator) {
      Logger log(Quiet());
      Saver saver(disk_, coordinator, SystemClock(), log, options_, guard,
                  [&] { return static_cast<uint64_t>(sequence); });
      if (rank == 0) {
        ASSERT_TRUE(saver.LookAround().ok());
        if (prepare) prepare(saver);
      }
      SaveRequest request;
      request.step = step;
      request.roles = cut_.Roles(rank);
      SourceFence fence;
      Snapshot snapshot(request, false, fence);
      Outcome& outcome = outcomes[static_cast<size_t>(rank)];
      outcome.status = saver.Run("save", snapshot, &outcome.record);
    });
    for (const Outcome& one : outcomes) {
      EXPECT_EQ(one.status.ToString(), outcomes[0].status.ToString());
    }
    return outcomes[0];
  }

  std::vector<std::string> Names() {
    std::vector<std::string> names;
    for (const FileInfo& info : ValueOrThrow(disk_.List("."))) names.push_back(info.name);
    std::sort(names.begin(), names.end());
    return names;
  }

  SimFileSystem disk_;
  CheckpointOptions options_ = SmallOptions();
  Cut cut_;
  int64_t sequence_ = 0;
};

TEST_F(SaverTest, TheRecordSaysWhatWasWrittenAndByWhom) {
  const Outcome saved = Save(7);
  ASSERT_EQ(saved.status.ToString(), "ok");
  EXPECT_EQ(saved.record.step, 7);
  EXPECT_FALSE(saved.record.async);
  EXPECT_EQ(saved.record.io, "buffered");
  ASSERT_EQ(saved.record.ranks.size(), 2u);
  EXPECT_EQ(saved.record.ranks[0].bytes, saved.record.bytes);
  // What the ranks wrote, and the disk's whole content of the step.
  const int64_t of_ranks = saved.record.ranks[0].bytes + saved.record.ranks[1].bytes;
  int64_t on_disk = 0;
  for (const std::string& file : disk_.AllFiles()) {
    if (file.starts_with(StepDirectory(7) + "/"))
      on_disk += static_cast<int64_t>(disk_.Content(file).size());
  }
  EXPECT_GT(of_ranks, 0);
  EXPECT_LT(of_ranks, on_disk);  // index and manifest are no rank's
  EXPECT_LE(saved.record.total_bytes, on_disk);
  EXPECT_GE(saved.record.total_bytes, of_ranks);
}

TEST_F(SaverTest, TheIdOfASaveComesFromTheEntropyItWasGiven) {
  const Outcome first = Save(1);
  sequence_ = 0;
  const Outcome again = Save(2);
  EXPECT_FALSE(first.record.save_id.empty());
  EXPECT_EQ(first.record.save_id, again.record.save_id);
  EXPECT_NE(first.record.save_id, Save(3).record.save_id);
}

// The guard is asked before the step is published, before the tracker is written, and before
// anything is removed. Whoever has lost the directory does none of these.
TEST_F(SaverTest, TheGuardStandsBeforePublishingTrackingAndRemoving) {
  options_.max_ckpts_to_keep = 1;
  ASSERT_EQ(Save(1).status.ToString(), "ok");
  std::atomic<int> asked{0};
  const Outcome all = Save(2, [&] {
    ++asked;
    return Status::Ok();
  });
  ASSERT_EQ(all.status.ToString(), "ok");
  EXPECT_EQ(all.record.removed, std::vector<int64_t>{1});
  const int questions = asked;
  ASSERT_GE(questions, 3);

  for (int denied = 1; denied <= questions; ++denied) {
    const std::optional<int64_t> tracked = ReadTracker(disk_);
    const std::vector<std::string> before = Names();
    asked = 0;
    const int64_t step = 10 + denied;
    const Outcome saved = Save(step, [&]() -> Status {
      if (++asked < denied) return Status::Ok();
      return Status(StatusCode::kBusy, "another run has the directory");
    });
    EXPECT_EQ(ReadTracker(disk_), denied < questions ? tracked : step);
    // Whatever was there is there: nothing is removed by one who is not the owner.
    const std::vector<std::string> after = Names();
    for (const std::string& name : before) {
      EXPECT_TRUE(std::binary_search(after.begin(), after.end(), name)) << name << " is gone";
    }
    EXPECT_TRUE(saved.record.removed.empty());
    if (denied > questions - 2) continue;  // it was published while it was the owner's
    EXPECT_THAT(saved.status.message(), HasSubstr("another run has the directory"));
    EXPECT_EQ(before, after) << "a save without the directory became visible";
  }
}

TEST_F(SaverTest, AFailedSaveLeavesNothingAndSaysWhatItHadDone) {
  ASSERT_EQ(Save(1).status.ToString(), "ok");
  const std::vector<std::string> before = Names();
  disk_.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    if (operation != "fsync" || path.find("actor") == std::string_view::npos) return Status::Ok();
    return Status::FromErrno(EIO, operation, path);
  });
  const Outcome saved = Save(2);
  disk_.SetFault({});
  EXPECT_EQ(saved.status.code(), StatusCode::kIo) << saved.status.ToString();
  EXPECT_EQ(saved.record.step, 2);
  EXPECT_FALSE(saved.record.save_id.empty());
  EXPECT_EQ(Names(), before);
}

TEST_F(SaverTest, LookAroundGivesTheNumberOfTheNextCommit) {
  ASSERT_EQ(Save(5).status.ToString(), "ok");
  ASSERT_EQ(Save(3).status.ToString(), "ok");
  RunRanks(1, [&](int, Coordinator& coordinator) {
    Logger log(Quiet());
    Saver saver(disk_, coordinator, SystemClock(), log, options_, Status::Ok);
    EXPECT_EQ(ValueOrThrow(saver.LookAround()), 3);
  });
}

// What a save that was cut off after its commit has left: a tracker of before, one step too many.
TEST_F(SaverTest, SettleEndsWhatACutOffSaveBegan) {
  options_.max_ckpts_to_keep = 2;
  int asked = 0;
  for (const int64_t step : {1, 2, 3}) ASSERT_EQ(Save(step).status.ToString(), "ok");
  const auto cut_off = [&](int64_t step) {
    asked = 0;
    (void)Save(step, [&]() -> Status {
      // Before the last two: tracker and retention.
      return ++asked > 2 ? Status(StatusCode::kBusy, "cut off") : Status::Ok();
    });
  };
  cut_off(4);
  ASSERT_EQ(ReadTracker(disk_), 3);
  ASSERT_EQ(Names().size(), 4u) << "2, 3, 4 and the tracker";
  const auto settle = [&](const Status& guard, const std::string& damaged) {
    std::vector<int64_t> removed;
    RunRanks(1, [&](int, Coordinator& coordinator) {
      Logger log(Quiet());
      Saver saver(disk_, coordinator, SystemClock(), log, options_, [&] { return guard; });
      if (!damaged.empty()) saver.NoteDamaged(damaged);
      removed = saver.Settle();
    });
    return removed;
  };
  EXPECT_THAT(settle(Status(StatusCode::kBusy, "another run has the directory"), ""), IsEmpty());
  EXPECT_EQ(ReadTracker(disk_), 3);
  EXPECT_THAT(settle(Status::Ok(), StepDirectory(4)), IsEmpty());
  EXPECT_EQ(ReadTracker(disk_), 3);
  EXPECT_THAT(settle(Status::Ok(), ""), ElementsAre(2));
  EXPECT_EQ(ReadTracker(disk_), 4);
  EXPECT_THAT(settle(Status::Ok(), ""), IsEmpty());
}

// A checkpoint that a load has passed over is no one that is kept, and is not removed either.
TEST_F(SaverTest, WhatALoadFoundDamagedDoesNotCountAsKept) {
  options_.max_ckpts_to_keep = 2;
  ASSERT_EQ(Save(1).status.ToString(), "ok");
  ASSERT_EQ(Save(2).status.ToString(), "ok");
  const Outcome saved =
      Save(3, Status::Ok, [](Saver& saver) { saver.NoteDamaged(StepDirectory(2)); });
  ASSERT_EQ(saved.status.ToString(), "ok");
  EXPECT_TRUE(saved.record.removed.empty());  // 1 and 3 are the two that are kept
  const Outcome next = Save(4);
  ASSERT_EQ(next.status.ToString(), "ok");
  EXPECT_FALSE(next.record.removed.empty());  // a saver that has heard of no damage
}

}  // namespace
}  // namespace keel::checkpoint::testing
