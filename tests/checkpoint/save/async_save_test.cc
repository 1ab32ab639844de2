// Background saves: what is on the disk is the state at StartSave, whatever the trainer does as
// soon as the fence lets it; and what they cost.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>

#include "checkpoint/read/verifier.h"
#include "checkpoint/run/catalog.h"
#include "tests/checkpoint/save/async_rank.h"
#include "tests/support/sanitized.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

TEST(AsyncSave, HoldsTheStateOfItsStep) {
  for (uint64_t seed = 0; seed < 24; ++seed) {
    SimFileSystem disk;
    Cut cut({1 + static_cast<int>(seed % 4), seed % 2 == 0, seed % 3 != 0, true}, seed);
    CheckpointOptions options = SmallOptions();
    options.dist_ckpt_workers = 1 + static_cast<int>(seed % 3);
    // Waves of two chunks in every other run.
    if (seed % 2 == 1) options.host_memory_cap = 2 * options.chunk_bytes;
    const TrainingState state = MakeTrainingState(seed);
    cut.Fill(state);
    Job(disk, cut, options, [&](int, Rank& job) {
      for (int64_t step = 1; step <= 3; ++step) {
        ThrowIfError(job->StartSave(job.Request(step)));
        job.Train(MakeTrainingState(seed + static_cast<uint64_t>(step)));
        const SaveResult end = job.End();
        EXPECT_EQ(end.status.ToString(), "ok") << "seed " << seed;
        EXPECT_TRUE(end.record.async);
        if (options.host_memory_cap) {
          EXPECT_LE(job->staging_bytes(), *options.host_memory_cap);
        }
      }
    });
    for (int64_t step = 1; step <= 3; ++step) {
      cut.Clear(0x11);
      const auto loaded = LoadFrom(disk, cut, [&](LoadRequest& request) {
        request.resume_path = "global_step_" + std::to_string(step);
      });
      ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
      EXPECT_EQ(cut.FirstDifference(MakeTrainingState(seed + static_cast<uint64_t>(step) - 1)), "")
          << "seed " << seed << " step " << step;
    }
  }
}

TEST(AsyncSave, AWriterThatDoesNotAskIsFoundOut) {
  if (keel::testing::kRacesAreSeen) GTEST_SKIP() << "a race is what is found out";
  SimFileSystem disk;
  Cut cut({2}, 1);
  cut.Fill(MakeTrainingState(1));
  Job(disk, cut, SmallOptions(), [&](int rank, Rank& job) {
    ThrowIfError(job->StartSave(job.Request(1)));
    if (rank == 1) job.TrainRecklessly();
    const SaveResult end = job.End();
    // Either the copy was done before, and the step is whole, or the save fails; never a mix.
    if (!end.status.ok()) {
      EXPECT_THAT(end.status.ToString(), HasSubstr("changed while it was being copied"));
    }
  });
  if (!ValueOrThrow(ListCheckpoints(disk)).empty()) {
    ExpectLoads(disk, cut, 1, MakeTrainingState(1));
  }
  EXPECT_THAT(Leftovers(disk), ::testing::IsEmpty());
}

TEST(AsyncSave, AWriterThatDoesNotAskIsFoundOutForCertain) {
  // Waves behind a disk that stands still: nearly nothing is copied when the trainer writes.
  SimFileSystem disk;
  Cut cut({1}, 1);
  cut.Fill(MakeTrainingState(1));
  CheckpointOptions options = SmallOptions();
  options.host_memory_cap = 2 * options.chunk_bytes;
  SlowWrites slow(disk, std::chrono::milliseconds(0));
  slow.Hold();
  Job(disk, cut, options, [&](int, Rank& job) {
    ThrowIfError(job->StartSave(job.Request(1)));
    slow.WaitForWrite();
    job.TrainRecklessly();
    slow.LetGo();
    EXPECT_THAT(job.End().status.ToString(), HasSubstr("changed while it was being copied"));
  });
  EXPECT_TRUE(ValueOrThrow(ListCheckpoints(disk)).empty());
  EXPECT_THAT(Leftovers(disk), ::testing::IsEmpty());
}

TEST(AsyncSave, WithoutASaveTheFenceIsNothing) {
  SimFileSystem disk;
  Cut cut({1}, 1);
  cut.Fill(MakeTrainingState(1));
  Job(disk, cut, SmallOptions(), [&](int, Rank& job) {
    const auto& memory = *job.Parts()[0]->memory[0];
    EXPECT_EQ(job->WaitFree(memory.data(), memory.size()), 0.0);
    ThrowIfError(job->StartSave(job.Request(1)));
    ThrowIfError(job->Wait());
    EXPECT_FALSE(job->busy());
    EXPECT_EQ(job->WaitFree(memory.data(), memory.size()), 0.0);
    // A save that blocks never holds anything.
    ThrowIfError(job->Save(job.Request(2)).status());
    EXPECT_EQ(job->WaitFree(memory.data(), memory.size()), 0.0);
  });
}

TEST(AsyncSave, AllOfItGivesWayToTheTraining) {
  const auto niceness = [] { return getpriority(PRIO_PROCESS, static_cast<id_t>(gettid())); };
  const int training = niceness();
  SimFileSystem disk;
  Cut cut({1}, 3);
  cut.Fill(MakeTrainingState(1));
  std::mutex mutex;
  std::set<int> saving;
  disk.SetFault([&](int64_t, std::string_view operation, std::string_view) {
    if (operation == "write" || operation == "fsync" || operation == "rename") {
      const std::lock_guard lock(mutex);
      saving.insert(niceness());
    }
    return Status::Ok();
  });
  Job(disk, cut, SmallOptions(), [&](int, Rank& job) {
    saving.clear();  // of opening the folder
    ThrowIfError(job->StartSave(job.Request(1)));
    EXPECT_EQ(niceness(), training);
    EXPECT_EQ(job.End().status.ToString(), "ok");
    EXPECT_EQ(niceness(), training);
  });
  EXPECT_EQ(saving, std::set{std::min(19, training + 10)});
}

TEST(AsyncSave, StableStateNeedsNoSecondCopy) {
  const TempDir dir;
  const auto fs = dir.Open();
  std::vector<TensorInfo> model = {{"w", DType::kBF16, Dims{512, 256}}};
  std::vector<TensorInfo> optimizer = {{"optimizer.master.w", DType::kF32, Dims{512, 256}},
                                       {"optimizer.exp_avg.w", DType::kF32, Dims{512, 256}}};
  RankPart weights, moments;
  for (const TensorInfo& tensor : model) weights.AddBox(tensor, Box::Whole(tensor.shape));
  for (const TensorInfo& tensor : optimizer) moments.AddBox(tensor, Box::Whole(tensor.shape));
  weights.Fill(MakeState(model, 1));
  moments.Fill(MakeState(optimizer, 2));
  for (const bool stable : {false, true}) {
    LocalCoordinatorHub hub(1);
    Logger log(Quiet());
    CheckpointOptions options = SmallOptions();
    Checkpointer checkpointer(*fs, hub.rank(0), SystemClock(), log, options);
    ThrowIfError(checkpointer.Open());
    SaveRequest request;
    request.step = stable ? 2 : 1;
    request.roles = {{"actor", weights.table, moments.table, false, stable}};
    ThrowIfError(checkpointer.StartSave(request));
    ThrowIfError(checkpointer.Wait());
    EXPECT_EQ(checkpointer.Finished().at(0).status.ToString(), "ok");
    const int64_t all = weights.table.bytes() + moments.table.bytes();
    if (stable) {
      EXPECT_LE(checkpointer.staging_bytes(), weights.table.bytes() + 8 * options.chunk_bytes);
    } else {
      EXPECT_GE(checkpointer.staging_bytes(), all);
      EXPECT_LE(checkpointer.staging_bytes(), all + 8 * options.chunk_bytes);
    }
    ThrowIfError(checkpointer.Close());
  }
  for (const char* step : {"global_step_1", "global_step_2"}) {
    EXPECT_TRUE(VerifyCheckpoint(*fs, step, 1).problems.empty());
  }
}

TEST(AsyncSave, MemoryIsFlatOverManySaves) {
  SimFileSystem disk;
  Cut cut({2}, 6, ModelSize::kTiny);
  cut.Fill(MakeTrainingState(1, ModelSize::kTiny));
  CheckpointOptions options = SmallOptions();
  options.remove_previous_ckpt_in_save = true;
  Job(disk, cut, options, [&](int, Rank& job) {
    ThrowIfError(job->Prepare(job.Request(0), true).status());
    const int64_t reserved = job->staging_bytes();
    EXPECT_GT(reserved, 0);
    for (int64_t step = 1; step <= 100; ++step) {
      ThrowIfError(job->StartSave(job.Request(step)));
      EXPECT_EQ(job.End().status.ToString(), "ok");
      EXPECT_EQ(job->staging_bytes(), reserved);
    }
  });
  EXPECT_EQ(ValueOrThrow(ListCheckpoints(disk)).size(), 1U);
}

// Descriptors, threads and resident memory of this process, over a hundred saves to a real disk.
TEST(AsyncSave, AHundredSavesLeaveNothingBehind) {
  struct Held {
    int64_t descriptors = 0, threads = 0, resident_bytes = 0;
  };
  const auto held = [] {
    const auto count = [](const char* folder) {
      return std::distance(std::filesystem::directory_iterator(folder), {});
    };
    int64_t all = 0, resident = 0;
    std::ifstream("/proc/self/statm") >> all >> resident;
    return Held{count("/proc/self/fd"), count("/proc/self/task"), resident * getpagesize()};
  };
  const TempDir dir;
  const auto fs = dir.Open();
  Cut cut({1}, 6);
  cut.Fill(MakeTrainingState(1));
  CheckpointOptions options = SmallOptions();
  options.remove_previous_ckpt_in_save = true;
  Held early, late;
  Job(*fs, cut, options, [&](int, Rank& job) {
    for (int64_t step = 1; step <= 100; ++step) {
      ThrowIfError(job->StartSave(job.Request(step)));
      EXPECT_EQ(job.End().status.ToString(), "ok");
      (step <= 10 ? early : late) = held();
    }
  });
  EXPECT_EQ(late.descriptors, early.descriptors);
  EXPECT_EQ(late.threads, early.threads);
  EXPECT_LE(late.resident_bytes, early.resident_bytes + (4 << 20));
  EXPECT_EQ(ValueOrThrow(fs->List(".")).size(), 3U);  // step, tracker, lock
}

TEST(AsyncSave, TrainingWaitsForNoPeer) {
  SimFileSystem disk;
  Cut cut({2, /*replicas=*/false, true, true}, 10);
  cut.Fill(MakeTrainingState(1));
  std::atomic<bool> trained{false};
  Job(disk, cut, SmallOptions(), [&](int rank, Rank& job) {
    ThrowIfError(job->StartSave(job.Request(1)));
    EXPECT_EQ(job.End().status.ToString(), "ok");
    // Rank 0 comes to its second save only when rank 1 has gone on.
    while (rank == 0 && !trained) std::this_thread::sleep_for(std::chrono::milliseconds(1));
    ThrowIfError(job->StartSave(job.Request(2)));
    job.Train(MakeTrainingState(2));
    trained = true;
    EXPECT_EQ(job.End().status.ToString(), "ok");
  });
  ExpectLoads(disk, cut, 2, MakeTrainingState(1));
}

TEST(AsyncSave, PredictsItsSize) {
  SimFileSystem disk;
  Cut cut({3}, 8);
  cut.Fill(MakeTrainingState(1));
  CheckpointOptions options = SmallOptions();
  options.chunk_bytes = int64_t{1} << 20;
  Job(disk, cut, options, [&](int rank, Rank& job) {
    const int64_t predicted = ValueOrThrow(job->Prepare(job.Request(1), true)).checkpoint_bytes;
    ThrowIfError(job->Save(job.Request(1)).status());
    if (rank != 0) return;  // only rank 0 knows the documents
    int64_t written = 0;
    for (const std::string& path : disk.AllFiles()) {
      if (path.starts_with("global_step_1/")) written += std::ssize(disk.Content(path));
    }
    EXPECT_NEAR(static_cast<double>(predicted), static_cast<double>(written), 256);
  });
}

// A disk without any room, not even for a name: whether that ends the run is for whoever reads the
// forecast.
TEST(AsyncSave, AFullDiskIsForecastAndNotRefused) {
  SimFileSystem disk;
  Cut cut({2}, 8, ModelSize::kTiny);
  cut.Fill(MakeTrainingState(1, ModelSize::kTiny));
  CheckpointOptions options = SmallOptions();
  options.io = IoChoice::kAuto;
  disk.SetFault([](int64_t, std::string_view operation, std::string_view path) {
    return operation == "mkdir" ? Status::FromErrno(ENOSPC, "make directory", path) : Status::Ok();
  });
  Job(disk, cut, options, [&](int, Rank& job) {
    EXPECT_GT(ValueOrThrow(job->Prepare(job.Request(1), true)).needed_bytes, 0);
    EXPECT_EQ(job->Save(job.Request(1)).status().code(), StatusCode::kNoSpace);
  });
  disk.SetFault({});
}

}  // namespace
}  // namespace keel::checkpoint
