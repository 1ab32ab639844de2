// What the tests of background saves share: ranks that save and train on, and a disk that takes its
// time.
#pragma once

#include <gtest/gtest.h>

#include <atomic>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint::testing {

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

inline void Job(FileSystem& fs, Cut& cut, const CheckpointOptions& options,
                const std::function<void(int rank, Rank& job)>& body) {
  RunRanks(cut.world(), [&](int rank, Coordinator& coordinator) {
    Rank job(fs, coordinator, cut, options);
    body(rank, job);
    ThrowIfError(job->Close());
  });
}

inline void ExpectLoads(FileSystem& fs, Cut& cut, int64_t step, const TrainingState& state) {
  cut.Clear(0x11);
  const auto loaded = LoadFrom(fs, cut);
  ASSERT_TRUE(loaded.ok()) << loaded.status().ToString();
  ASSERT_TRUE(loaded->has_value());
  EXPECT_EQ((*loaded)->step, step);
  EXPECT_EQ(cut.FirstDifference(state), "");
}

inline std::vector<std::string> Leftovers(const FileSystem& fs) {
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

}  // namespace keel::checkpoint::testing
