// Background saves that do not come to their end: a disk that is slow or stuck, saves that fail,
// are cancelled or superseded, a run directory that another run has taken.
#include <gmock/gmock.h>

#include <filesystem>

#include "checkpoint/run/catalog.h"
#include "tests/checkpoint/save/async_rank.h"
#include "tests/support/sanitized.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

TEST(AsyncSave, AStuckDiskDoesNotStopTheTraining) {
  if (keel::testing::kRacesAreSeen)
    GTEST_SKIP() << "training writes what a save that was given up may still read";
  SimFileSystem disk;
  Cut cut({1}, 3);
  cut.Fill(MakeTrainingState(1));
  CheckpointOptions options = SmallOptions();
  options.host_memory_cap = 2 * options.chunk_bytes;
  options.deadline = std::chrono::milliseconds(700);
  SlowWrites slow(disk, std::chrono::milliseconds(0));
  slow.Hold();
  Job(disk, cut, options, [&](int, Rank& job) {
    ThrowIfError(job->StartSave(job.Request(1)));
    slow.WaitForWrite();
    job.Train(MakeTrainingState(2));  // returns although the disk stands still
    EXPECT_EQ(cut.FirstDifference(MakeTrainingState(2)), "");
    // Nor do the saves that come due, nor the end of the run.
    for (const Status& refused :
         {job->StartSave(job.Request(2)), job->Save(job.Request(2)).status(), job->WaitOnAll()}) {
      EXPECT_EQ(refused.code(), StatusCode::kIo);
      EXPECT_THAT(refused.message(), AllOf(HasSubstr("save of step 1"), HasSubstr("stands still")));
    }
    EXPECT_TRUE(job->busy());
    slow.LetGo();
    const Status given_up = job.End().status;
    EXPECT_EQ(given_up.code(), StatusCode::kIo);
    EXPECT_THAT(given_up.message(), AllOf(HasSubstr("rank 0"), HasSubstr("save of step 1"),
                                          HasSubstr("the training waits")));
    ThrowIfError(job->StartSave(job.Request(2)));
    EXPECT_EQ(job.End().status.ToString(), "ok");
  });
  ExpectLoads(disk, cut, 2, MakeTrainingState(2));
}

// A piece takes it longer than the deadline to be written, but it moves.
TEST(AsyncSave, ASlowDiskIsWaitedForAsLongAsItMoves) {
  SimFileSystem disk;
  const std::vector<TensorInfo> tensors = {{"w", DType::kF32, Dims{64, 256}}};
  RankPart weights;
  weights.AddBox(tensors[0], Box::Whole(tensors[0].shape));
  weights.Fill(MakeState(tensors, 1));
  LocalCoordinatorHub hub(1);
  Logger log(Quiet());
  CheckpointOptions options = SmallOptions();
  options.host_memory_cap = 2 * options.chunk_bytes;
  options.deadline = std::chrono::milliseconds(1500);
  const SlowWrites slow(disk, std::chrono::milliseconds(300));
  Checkpointer checkpointer(disk, hub.rank(0), SystemClock(), log, options);
  ThrowIfError(checkpointer.Open());
  SaveRequest request;
  request.step = 1;
  request.contents.optimizer = false;
  request.roles = {{"actor", weights.table, {}}};
  ThrowIfError(checkpointer.StartSave(request));
  const double waited = checkpointer.WaitFree(weights.memory[0]->data(), weights.memory[0]->size());
  EXPECT_GT(waited, 2 * std::chrono::duration<double>(options.deadline).count());
  ThrowIfError(checkpointer.Wait());
  EXPECT_EQ(checkpointer.Finished().at(0).status.ToString(), "ok");
  ThrowIfError(checkpointer.Close());
}

// Rank 0 syncs a dozen small files and directories one after the other, which takes it far longer
// together than the deadline; the other rank hears that it moves.
TEST(AsyncSave, ManySlowSyncsAreNoDiskThatStandsStill) {
  SimFileSystem disk;
  Cut cut({2}, 3, ModelSize::kTiny);
  const TrainingState state = MakeTrainingState(1, ModelSize::kTiny);
  cut.Fill(state);
  CheckpointOptions options = SmallOptions();
  options.deadline = std::chrono::milliseconds(2000);
  std::atomic<int> syncs = 0;
  disk.SetFault([&](int64_t, std::string_view operation, std::string_view) {
    if (operation.starts_with("fsync")) {
      ++syncs;
      std::this_thread::sleep_for(options.deadline / 3);
    }
    return Status::Ok();
  });
  Job(disk, cut, options, [&](int, Rank& job) {
    ThrowIfError(job->StartSave(job.Request(1)));
    EXPECT_EQ(job.End().status.ToString(), "ok");
  });
  disk.SetFault({});
  EXPECT_GT(syncs, 2 * 3 + 2);  // together more than the others' patience
  ExpectLoads(disk, cut, 1, state);
}

// All of it is staged when it is given up: what is still to be written is not written any more.
TEST(AsyncSave, ACancelledSaveDoesNotWriteOn) {
  SimFileSystem disk;
  Cut cut({1}, 5);
  cut.Fill(MakeTrainingState(1));
  int whole = 0;
  for (const bool cancels : {false, true}) {
    SlowWrites slow(disk, std::chrono::milliseconds(0));
    Job(disk, cut, SmallOptions(), [&](int, Rank& job) {
      slow.Hold();
      ThrowIfError(job->StartSave(job.Request(1)));
      slow.WaitForWrite();
      job.Train(MakeTrainingState(1));  // nothing of the state is needed any more
      if (cancels) job->Cancel();
      slow.LetGo();
      EXPECT_EQ(job.End().status.code(), cancels ? StatusCode::kCancelled : StatusCode::kOk);
    });
    if (!cancels) {
      whole = slow.writes();
      ASSERT_GT(whole, 4);
    } else {
      EXPECT_LE(slow.writes(), 2);
    }
  }
}

TEST(AsyncSave, AStuckDiskIsNotWaitedForAtTheEnd) {
  SimFileSystem disk;
  Cut cut({1}, 3);
  cut.Fill(MakeTrainingState(1));
  CheckpointOptions options = SmallOptions();
  options.deadline = std::chrono::milliseconds(700);
  SlowWrites slow(disk, std::chrono::milliseconds(0));
  slow.Hold();
  RunRanks(1, [&](int, Coordinator& coordinator) {
    Rank job(disk, coordinator, cut, options);
    ThrowIfError(job->StartSave(job.Request(1)));
    slow.WaitForWrite();
    EXPECT_EQ(job->Close().code(), StatusCode::kIo);
    EXPECT_EQ(job->Abandon().code(), StatusCode::kIo);
    slow.LetGo();
    ThrowIfError(job->Abandon());
  });
}

TEST(AsyncSave, AFailureReachesEveryRankAndTheNextSaveWorks) {
  for (int failing = 0; failing < 3; ++failing) {
    SimFileSystem disk;
    Cut cut({3}, 4);
    cut.Fill(MakeTrainingState(1));
    ThrowIfError(SaveOn(disk, cut, 10, SmallOptions()));
    const std::string file = "rank_0000" + std::to_string(failing);
    std::atomic<bool> broken{true};
    disk.SetFault([&](int64_t, std::string_view operation, std::string_view path) {
      if (broken && operation == "write" && path.find(file) != std::string_view::npos)
        return Status(StatusCode::kNoSpace, std::string(path) + ": no space left on device");
      return Status::Ok();
    });
    cut.Fill(MakeTrainingState(2));
    Job(disk, cut, SmallOptions(), [&](int rank, Rank& job) {
      ThrowIfError(job->StartSave(job.Request(20)));
      job.Train(MakeTrainingState(3));
      const SaveResult end = job.End();
      EXPECT_EQ(end.status.code(), StatusCode::kNoSpace) << rank << end.status.ToString();
      EXPECT_THAT(end.status.message(), HasSubstr("rank " + std::to_string(failing)));
      EXPECT_THAT(end.status.message(), HasSubstr("no space left"));
      broken = false;
      ThrowIfError(job->StartSave(job.Request(30)));
      EXPECT_EQ(job.End().status.ToString(), "ok");
    });
    disk.SetFault({});
    EXPECT_THAT(Leftovers(disk), ::testing::IsEmpty());
    ExpectLoads(disk, cut, 30, MakeTrainingState(3));
  }
}

TEST(AsyncSave, CancelledAndSupersededSavesLeaveNothing) {
  SimFileSystem disk;
  Cut cut({2}, 5);
  cut.Fill(MakeTrainingState(1));
  SlowWrites slow(disk, std::chrono::milliseconds(2));
  slow.Hold();  // no save ends before it is cancelled
  Job(disk, cut, SmallOptions(), [&](int rank, Rank& job) {
    ThrowIfError(job->StartSave(job.Request(1)));
    job.Train(MakeTrainingState(2));
    if (rank == 1) {
      job->Cancel();  // one rank is enough
      slow.LetGo();
    }
    EXPECT_EQ(job.End().status.code(), StatusCode::kCancelled);
    if (rank == 1) slow.Hold();  // before it has a part in the next one
    ThrowIfError(job->StartSave(job.Request(2)));
    job.Train(MakeTrainingState(3));
    job->Cancel();
    if (rank == 1) slow.LetGo();
    ThrowIfError(job->WaitOnAll());
    ThrowIfError(job->StartSave(job.Request(3)));
    ThrowIfError(job->Wait());
    const std::vector<SaveResult> ended = job->Finished();
    ASSERT_EQ(ended.size(), 2U);
    EXPECT_EQ(ended[0].status.code(), StatusCode::kCancelled);
    EXPECT_EQ(ended[1].status.ToString(), "ok");
  });
  EXPECT_THAT(Leftovers(disk), ::testing::IsEmpty());
  ASSERT_EQ(ValueOrThrow(ListCheckpoints(disk)).size(), 1U);
  ExpectLoads(disk, cut, 3, MakeTrainingState(3));
}

TEST(AsyncSave, AThiefOfTheDirectoryStopsThePublication) {
  SimFileSystem disk;
  Cut cut({2}, 9);
  cut.Fill(MakeTrainingState(1));
  Job(disk, cut, SmallOptions(), [&](int rank, Rank& job) {
    ThrowIfError(job->Save(job.Request(1)).status());
    if (rank == 0) disk.SetContent(".keel-lock", "host other, pid 1, since noon");
    const Result<SaveRecord> saved = job->Save(job.Request(2));
    EXPECT_EQ(saved.status().code(), StatusCode::kBusy) << rank;
    EXPECT_THAT(saved.status().message(), HasSubstr("taken over (host other, pid 1, since noon)"));
  });
  EXPECT_EQ(ValueOrThrow(ListCheckpoints(disk)).size(), 1U);
}

// The thief has come and gone: it has emptied the line in the lock's file, as every run does at its
// end, or has made the file anew.
TEST(AsyncSave, AThiefThatHasLeftStopsThePublicationToo) {
  for (const bool anew : {false, true}) {
    const TempDir dir;
    const auto fs = dir.Open();
    Cut cut({2}, 9);
    cut.Fill(MakeTrainingState(1));
    CheckpointOptions options = SmallOptions();
    options.remove_previous_ckpt_in_save = true;
    Job(*fs, cut, options, [&](int rank, Rank& job) {
      ThrowIfError(job->Save(job.Request(1)).status());
      if (rank == 0) {
        const std::string line = ReadAll(dir / ".keel-lock");
        if (anew) std::filesystem::remove(dir / ".keel-lock");
        WriteAll(dir / ".keel-lock", anew ? line : "");
      }
      const Result<SaveRecord> saved = job->Save(job.Request(2));
      EXPECT_EQ(saved.status().code(), StatusCode::kBusy) << rank;
      EXPECT_THAT(saved.status().message(), HasSubstr("was taken over"));
    });
    const auto there = ValueOrThrow(ListCheckpoints(*fs));
    ASSERT_EQ(there.size(), 1U);
    EXPECT_EQ(there[0].step, 1);
  }
}

// A coordinator over which a rank's reports never arrive.
class WithoutReports final : public Coordinator {
 public:
  explicit WithoutReports(Coordinator& inner) : inner_(inner) {}
  int rank() const override { return inner_.rank(); }
  int world() const override { return inner_.world(); }
  Status Put(std::string_view key, std::string_view value) override {
    return key.find("/report/") == std::string_view::npos ? inner_.Put(key, value) : Status::Ok();
  }
  Result<std::string> Get(std::string_view key, std::chrono::milliseconds deadline) override {
    return inner_.Get(key, deadline);
  }
  Status Delete(std::string_view key) override { return inner_.Delete(key); }

 private:
  Coordinator& inner_;
};

TEST(AsyncSave, AllRanksHearWhoWasNotHeardOf) {
  SimFileSystem disk;
  Cut cut({3}, 1, ModelSize::kTiny);
  cut.Fill(MakeTrainingState(1, ModelSize::kTiny));
  CheckpointOptions options = SmallOptions();
  options.deadline = std::chrono::milliseconds(1'500);
  RunRanks(3, [&](int rank, Coordinator& coordinator) {
    WithoutReports silent(coordinator);
    Rank job(disk, rank == 2 ? silent : coordinator, cut, options);
    ThrowIfError(job->StartSave(job.Request(10)));
    const SaveResult result = job.End();
    EXPECT_FALSE(result.status.ok());
    // From rank 0, which waited for it; not that rank 0 itself was late.
    EXPECT_THAT(result.status.message(), HasSubstr("report of rank 2")) << "on rank " << rank;
    ThrowIfError(job->Close());
  });
  EXPECT_TRUE(Leftovers(disk).empty());
}

}  // namespace
}  // namespace keel::checkpoint
