// What the tests of loads by several ranks share: every rank's own view of the disk, and the ways
// on which what one rank has read comes to another.
#pragma once

#include <gtest/gtest.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <memory>
#include <span>
#include <string_view>
#include <vector>

#include "checkpoint/base/peer_channel.h"
#include "checkpoint/checkpointer.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/checkpoint/support/view_file_system.h"

namespace keel::checkpoint::testing {

// Every rank of a load with its own view of the disk.
struct Views {
  explicit Views(FileSystem& disk, int world) {
    for (int r = 0; r < world; ++r) views.push_back(std::make_unique<ViewFileSystem>(disk));
  }
  LoadSetup Setup() const {
    LoadSetup setup;
    for (const auto& view : views) setup.views.push_back(view.get());
    setup.options = SmallOptions();
    return setup;
  }
  int64_t BytesRead(std::string_view suffix) const {
    int64_t sum = 0;
    for (const auto& view : views) sum += view->bytes_read(suffix);
    return sum;
  }
  ViewFileSystem& operator[](int r) { return *views[static_cast<size_t>(r)]; }
  std::vector<std::unique_ptr<ViewFileSystem>> views;
};

// How the bytes that one rank has read come to another.
enum class Way {
  kMemory,
  kChannel,
  kEither,    // one rank shares no memory
  kTwoHosts,  // even and odd ranks share memory among themselves
};
inline const std::vector<Way> kWays = {Way::kMemory, Way::kChannel, Way::kEither, Way::kTwoHosts};

// Passes everything on, but that what even ranks and odd ones offer each other to share does not
// hold.
class TwoHosts : public PeerChannel {
 public:
  explicit TwoHosts(PeerChannel& real) : real_(real) {}
  int rank() const override { return real_.rank(); }
  int world() const override { return real_.world(); }
  Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                  std::chrono::milliseconds deadline) override {
    const Status status = real_.Exchange(sends, receives, deadline);
    for (const Receive& one : receives) {
      // An offer begins with 1 and the process; its nonce follows at 24.
      int64_t pid = 0;
      if (one.bytes.size() == 256) std::memcpy(&pid, one.bytes.data() + 4, sizeof pid);
      if (pid == ::getpid() && (one.peer - rank()) % 2 != 0) one.bytes[24] ^= std::byte{1};
    }
    return status;
  }

 private:
  PeerChannel& real_;
};

// Changes requests so that they go that way. Lives as long as the load.
class WaySetup {
 public:
  WaySetup(Way way, int world) : way_(way), channels_(static_cast<size_t>(world)) {}
  void Apply(int rank, LoadRequest* request) {
    if (way_ == Way::kChannel || (way_ == Way::kEither && rank == 1)) request->share_memory = false;
    if (way_ != Way::kTwoHosts || request->channel == nullptr) return;
    channels_[static_cast<size_t>(rank)] = std::make_unique<TwoHosts>(*request->channel);
    request->channel = channels_[static_cast<size_t>(rank)].get();
  }

 private:
  const Way way_;
  std::vector<std::unique_ptr<TwoHosts>> channels_;
};

inline void ExpectAllOk(const LoadOutcome& outcome) {
  for (const Status& status : outcome.statuses) EXPECT_EQ(status.ToString(), "ok");
}

// A state of several megabytes over four data-parallel ranks: every rank holds all weights, and a
// quarter of the rest.
struct Replicated {
  explicit Replicated(int world, int64_t rows = 512) : cut({world}, 1, ModelSize::kTiny) {
    const TensorInfo weight{"model.w", DType::kBF16, Dims{rows, 256}};
    const TensorInfo norm{"model.norm", DType::kF32, Dims{256}};
    const TensorInfo master{"optimizer.master.w", DType::kF32, Dims{rows, 256}};
    state = {MakeState({weight, norm}, 3), MakeState({master}, 4)};
    for (int r = 0; r < world; ++r) {
      const auto i = static_cast<size_t>(r);
      cut.model[i] = RankPart();
      cut.optimizer[i] = RankPart();
      cut.model[i].AddBox(weight, Box::Whole(weight.shape), r);
      cut.model[i].AddBox(norm, Box::Whole(norm.shape), r);
      const int64_t from = rows * r / world;
      const int64_t to = rows * (r + 1) / world;
      cut.optimizer[i].AddBox(master, {Dims{from, 0}, Dims{to - from, 256}});
    }
  }
  Cut cut;
  TrainingState state;
};

}  // namespace keel::checkpoint::testing
