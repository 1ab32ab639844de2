// Background saves: what is on the disk is the state at StartSave, whatever the trainer does as
// soon as the fence lets it; failures, cancelled and superseded saves leave nothing behind.
#include <gmock/gmock.h>
#include <sys/resource.h>
#include <unistd.h>

#include <atomic>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <mutex>
#include <set>
#include <thread>

#include "checkpoint/catalog.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/verifier.h"
#include "tests/checkpoint/sim_file_system.h"
#include "tests/checkpoint/test_support.h"

namespace keel::checkpoint {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// One rank of a job that saves in the background, and trains by overwriting its state.
class Rank {
 public:
  Rank(FileSystem& fs, Coordinator& coordinator, Cut& cut, const CheckpointOptions& options)
      : log_(Quiet()),
        checkpointer_(fs, coordinator, SystemClock(), log_, options),
        cut_(cut),
        rank_(coordinator.rank()) {
    ThrowIfError(checkpointer_.Open());
  }

  SaveRequest Request(int64_t step) const {
    SaveRequest request;
    request.step = step;
    request.roles = cut_.Roles(rank_);
    request.config_digest = "config-a";
    if (rank_ == 0) request.documents = {{"trainer_state.json", "{}\n", true}};
    return request;
  }

  // The state becomes another one, range by range, each as soon as it is free.
  void Train(const TrainingState& state) {
    for (RankPart* part : Parts()) {
      for (const auto& memory : part->memory)
        checkpointer_.WaitFree(memory->data(), memory->size());
    }
    cut_.model[static_cast<size_t>(rank_)].Fill(state.model);
    cut_.optimizer[static_cast<size_t>(rank_)].Fill(state.optimizer);
  }
  // The same without asking.
  void TrainRecklessly() {
    for (RankPart* part : Parts()) part->Clear(0x77);
  }

  std::vector<RankPart*> Parts() {
    return {&cut_.model[static_cast<size_t>(rank_)], &cut_.optimizer[static_cast<size_t>(rank_)]};
  }

  // The end of the save in flight.
  SaveResult End() {
    ThrowIfError(checkpointer_.Wait());
    std::vector<SaveResult> ended = checkpointer_.Finished();
    EXPECT_EQ(ended.size(), 1U);
    return ended.empty() ? SaveResult() : ended.back();
  }

  Checkpointer& operator*() { return checkpointer_; }
  Checkpointer* operator->() { return &checkpointer_; }

 private:
  Logger log_;
  Checkpointer checkpointer_;
  Cut& cut_;
  int rank_;
};

void Job(FileSystem& fs, Cut& cut, const CheckpointOptions& options,
         const std::function<void(int rank, Rank& job)>& body) {
  RunRanks(cut.world(), [&](int rank, Coordinator& coordinator) {
    Rank job(fs, coordinator, cut, options);
    body(rank, job);
    ThrowIfError(job->Close());
  });
}

void ExpectLoads(FileSystem& fs, Cut& cut, int64_t step, const TrainingState& state) {
  cut.Clear(0x11);
  const auto loaded = LoadFrom(fs, cut);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  ASSERT_TRUE(loaded->has_value());
  EXPECT_EQ((*loaded)->step, step);
  EXPECT_EQ(cut.FirstDifference(state), "");
}

std::vector<std::string> Leftovers(const FileSystem& fs) {
  std::vector<std::string> names;
  for (const FileInfo& info : ValueOrThrow(fs.List("."))) {
    if (info.name.starts_with(".tmp-") || info.name.starts_with(".trash-") ||
        info.name.starts_with(".old-"))
      names.push_back(info.name);
  }
  return names;
}

// Delays every write, so that a save goes on for as long as a test needs.
class SlowWrites {
 public:
  explicit SlowWrites(SimFileSystem& disk, std::chrono::milliseconds delay) : disk_(disk) {
    disk_.SetFault([this, delay](int64_t, std::string_view operation, std::string_view path) {
      if (operation == "write" && path.find(".safetensors") != std::string_view::npos) {
        ++writes_;
        while (held_.load()) std::this_thread::sleep_for(std::chrono::milliseconds(1));
        std::this_thread::sleep_for(delay);
      }
      return Status::Ok();
    });
  }
  ~SlowWrites() { disk_.SetFault({}); }
  void Hold() { held_ = true; }
  void LetGo() { held_ = false; }
  int writes() const { return writes_.load(); }
  void WaitForWrite() const {
    while (writes_.load() == 0) std::this_thread::sleep_for(std::chrono::milliseconds(1));
  }

 private:
  SimFileSystem& disk_;
  std::atomic<bool> held_{false};
  std::atomic<int> writes_{0};
};

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

TEST(AsyncSave, AStuckDiskDoesNotStopTheTraining) {
  SimFileSystem disk;
  Cut cut({1}, 3);
  cut.Fill(MakeTrainingState(1));
  CheckpointOptions options = SmallOptions();
  options.host_memory_cap = 2 * options.chunk_bytes;
  options.deadline = std::chrono::milliseconds(50);
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
      EXPECT_EQ(refused.code(), StatusCode::kDeadlineExceeded);
      EXPECT_THAT(refused.message(), AllOf(HasSubstr("save of step 1"), HasSubstr("stands still")));
    }
    EXPECT_TRUE(job->busy());
    slow.LetGo();
    const Status given_up = job.End().status;
    EXPECT_EQ(given_up.code(), StatusCode::kDeadlineExceeded);
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
  options.deadline = std::chrono::milliseconds(200);
  const SlowWrites slow(disk, std::chrono::milliseconds(40));
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
  options.deadline = std::chrono::milliseconds(50);
  SlowWrites slow(disk, std::chrono::milliseconds(0));
  slow.Hold();
  RunRanks(1, [&](int, Coordinator& coordinator) {
    Rank job(disk, coordinator, cut, options);
    ThrowIfError(job->StartSave(job.Request(1)));
    slow.WaitForWrite();
    EXPECT_EQ(job->Close().code(), StatusCode::kDeadlineExceeded);
    EXPECT_EQ(job->Abandon().code(), StatusCode::kDeadlineExceeded);
    slow.LetGo();
    ThrowIfError(job->Abandon());
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
  Job(disk, cut, SmallOptions(), [&](int rank, Rank& job) {
    ThrowIfError(job->StartSave(job.Request(1)));
    job.Train(MakeTrainingState(2));
    if (rank == 1) job->Cancel();  // one rank is enough
    EXPECT_EQ(job.End().status.code(), StatusCode::kCancelled);
    ThrowIfError(job->StartSave(job.Request(2)));
    job.Train(MakeTrainingState(3));
    job->Cancel();
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
