// Ranks that read a checkpoint together, as processes: over shared memory, and when one of them
// dies or stands still.
#include "checkpoint/load/shared_reader.h"

#include <gmock/gmock.h>
#include <signal.h>
#include <sys/mman.h>
#include <sys/wait.h>
#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <cstdio>
#include <functional>
#include <memory>
#include <new>

#include "checkpoint/read/step_reader.h"
#include "common/clock.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/socket_channel.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/checkpoint/support/view_file_system.h"

namespace keel::checkpoint {
namespace {

using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests
using std::chrono::milliseconds;

// What a rank's process has to say.
struct Outcome {
  bool told = false;
  char status[512] = "";
  bool peer_lost = false, peer_stopped = false;
  double seconds = 0;
  int64_t bytes = 0, received = 0;
  char difference[256] = "";
  bool holds_damage = false;  // a run of kDamage
};
constexpr std::byte kDamage{0xee};

// A weight that every rank holds whole: all of them need every chunk.
class Ranks : public ::testing::Test {
 protected:
  static constexpr int kWorld = 3;
  explicit Ranks(const Dims& shape = {512, 256}, const CheckpointOptions& options = SmallOptions())
      : weight_{"model.w", DType::kF32, shape},
        cut_({kWorld}, 1, ModelSize::kTiny),
        state_{MakeState({weight_}, 3), {}} {
    for (int r = 0; r < kWorld; ++r) {
      const auto i = static_cast<size_t>(r);
      cut_.model[i] = RankPart();
      cut_.model[i].AddBox(weight_, Box::Whole(weight_.shape), r);
      cut_.optimizer[i] = RankPart();
    }
    cut_.Fill(state_);
    ThrowIfError(SaveOn(disk_, cut_, 10, options,
                        [](SaveRequest& request) { request.contents.optimizer = false; }));
    cut_.Clear(0x11);
    void* shared = ::mmap(nullptr, sizeof(Outcome) * kWorld, PROT_READ | PROT_WRITE,
                          MAP_SHARED | MAP_ANONYMOUS, -1, 0);
    outcomes_ = static_cast<Outcome*>(shared);
    for (int r = 0; r < kWorld; ++r) new (&outcomes_[r]) Outcome;
  }
  ~Ranks() override { ::munmap(outcomes_, sizeof(Outcome) * kWorld); }

  struct Setup {
    int near = kWorld;  // so many ranks share memory
    milliseconds deadline{60'000};
    // In the rank's own process.
    std::function<void(int rank, ViewFileSystem&)> prepare = [](int, ViewFileSystem&) {};
  };

  // Returns when all processes have ended, or are stopped for good.
  void Run(const Setup& setup) {
    SocketPairs pairs(kWorld);
    std::vector<pid_t> children;
    for (int rank = 0; rank < kWorld; ++rank) {
      const pid_t child = ::fork();
      ASSERT_GE(child, 0);
      if (child == 0) {
        ::alarm(100);
        Child(rank, setup, &pairs);
        ::_exit(0);
      }
      children.push_back(child);
    }
    pairs.KeepOnly(-1);
    // Who has not been killed comes to an end; who is stopped is killed after the others.
    std::vector<pid_t> stopped;
    for (const pid_t child : children) {
      int status = 0;
      ASSERT_EQ(::waitpid(child, &status, WUNTRACED), child);
      if (WIFSTOPPED(status)) stopped.push_back(child);
    }
    for (const pid_t child : stopped) {
      ::kill(child, SIGKILL);
      ::waitpid(child, nullptr, 0);
    }
  }

  void Child(int rank, const Setup& setup, SocketPairs* pairs) {
    pairs->KeepOnly(rank);
    SocketChannel channel(*pairs, rank);
    ViewFileSystem view(disk_);
    const StepReader reader = ValueOrThrow(StepReader::Open(view, "global_step_10"));
    const RankPart& part = cut_.model[static_cast<size_t>(rank)];
    std::vector<ReadPlan> plans;
    std::vector<std::vector<ChunkNeed>> needs;
    for (const RankPart& one : cut_.model) {
      const ReadRequest request{"actor/model", &one.table, {}};
      plans.push_back(ValueOrThrow(ReadPlan::Make(reader.index(), std::span(&request, 1))));
      needs.push_back(NeedsOf(plans.back(), reader.index()));
    }
    const ReadPlan& plan = plans[static_cast<size_t>(rank)];
    std::vector<int> files;
    for (int f = 0; f < reader.index().files(); ++f) {
      if (reader.index().file(f).path.ends_with(".safetensors")) files.push_back(f);
    }
    const int64_t round = 4 * reader.index().chunk_bytes();
    const ReadSchedule schedule =
        MakeReadSchedule(reader.index(), files, needs, true, {round, round});
    setup.prepare(rank, view);
    SharedReader shared(
        reader, plan, schedule, channel,
        {.threads = 1 + rank % 2, .share_memory = rank < setup.near, .deadline = setup.deadline});
    const Stopwatch watch;
    const SharedReadResult result = shared.Run();
    Outcome& outcome = outcomes_[rank];
    outcome.seconds = watch.Elapsed();
    std::snprintf(outcome.status, sizeof outcome.status, "%s", result.status.ToString().c_str());
    outcome.peer_lost = result.peer_lost;
    outcome.peer_stopped = result.peer_stopped;
    outcome.bytes = result.stats.bytes;
    outcome.received = result.stats.received;
    const std::string difference = part.FirstDifference(state_.model);
    std::snprintf(outcome.difference, sizeof outcome.difference, "%s", difference.c_str());
    const std::vector<std::byte>& memory = *part.memory[0];
    outcome.holds_damage = std::search_n(memory.begin(), memory.end(), 64, kDamage) != memory.end();
    outcome.told = true;
  }

  void ReadEachByteOnceOverBothWays();

  int64_t FileBytes() const {
    int64_t bytes = 0;
    for (const std::string& path : disk_.AllFiles()) {
      if (path.ends_with(".safetensors")) bytes += static_cast<int64_t>(disk_.Content(path).size());
    }
    return bytes;
  }

  // At its n-th read of tensors from now on.
  static std::function<void(std::string_view, int64_t, std::span<std::byte>)> AtRead(
      int n, const std::function<void(std::span<std::byte>)>& then) {
    return [left = std::make_shared<std::atomic<int>>(n), then](std::string_view, int64_t,
                                                                std::span<std::byte> b) {
      if (--*left == 0) then(b);
    };
  }

  const TensorInfo weight_;
  Cut cut_;
  TrainingState state_;
  SimFileSystem disk_;
  Outcome* outcomes_ = nullptr;
};

// Chunks of four blocks, and a shorter one at the end.
class RanksWithLargeChunks : public Ranks {
 protected:
  static constexpr int kBlocks = 4;
  RanksWithLargeChunks() : Ranks({2500, 1024}, Options()) {}
  static CheckpointOptions Options() {
    CheckpointOptions options = SmallOptions();
    options.chunk_bytes = kBlocks * StepReader::kBlockBytes;
    return options;
  }
};

TEST_F(Ranks, AsProcessesReadEachByteOnceOverBothWays) { ReadEachByteOnceOverBothWays(); }

TEST_F(RanksWithLargeChunks, AsProcessesReadEachByteOnceOverBothWays) {
  ReadEachByteOnceOverBothWays();
}

void Ranks::ReadEachByteOnceOverBothWays() {
  for (const int near : {kWorld, 2, 0}) {
    SCOPED_TRACE(::testing::Message() << near << " ranks share memory");
    for (int r = 0; r < kWorld; ++r) outcomes_[r] = Outcome();
    Setup setup;
    setup.near = near;
    Run(setup);
    int64_t bytes = 0;
    for (int r = 0; r < kWorld; ++r) {
      const Outcome& outcome = outcomes_[r];
      ASSERT_TRUE(outcome.told);
      EXPECT_STREQ(outcome.status, "ok");
      EXPECT_STREQ(outcome.difference, "");
      EXPECT_FALSE(outcome.peer_stopped);
      EXPECT_GT(outcome.received, 0);
      bytes += outcome.bytes;
    }
    EXPECT_EQ(bytes, FileBytes());
  }
}

// Long before the deadline, by name, in any of its chunks.
TEST_F(Ranks, AProcessThatDiesInTheMiddleIsNamedAtOnce) {
  for (const int near : {kWorld, 2, 0}) {
    for (int victim = 0; victim < kWorld; ++victim) {
      for (const int read : {1, 2, 10, 25}) {
        SCOPED_TRACE(::testing::Message() << "rank " << victim << " at read " << read << ", "
                                          << near << " ranks share memory");
        for (int r = 0; r < kWorld; ++r) outcomes_[r] = Outcome();
        Setup setup;
        setup.near = near;
        setup.prepare = [&](int rank, ViewFileSystem& view) {
          if (rank != victim) return;
          view.SetChange(AtRead(read, [](std::span<std::byte>) { ::raise(SIGKILL); }));
        };
        Run(setup);
        int named = 0;
        for (int r = 0; r < kWorld; ++r) {
          const Outcome& outcome = outcomes_[r];
          EXPECT_EQ(outcome.told, r != victim);
          if (r == victim) continue;
          EXPECT_LT(outcome.seconds, 30);
          ASSERT_TRUE(outcome.peer_lost || outcome.peer_stopped);
          const std::string status = outcome.status;
          named += status.find("for rank " + std::to_string(victim)) != std::string::npos ? 1 : 0;
        }
        // Over the channel one may see the other's end first, who has seen the victim's.
        EXPECT_GE(named, near == kWorld ? kWorld - 1 : 1);
      }
    }
  }
}

TEST_F(Ranks, AProcessThatStandsStillIsNamedAfterTheDeadline) {
  const int victim = 1;
  Setup setup;
  setup.deadline = milliseconds(1'000);
  setup.prepare = [&](int rank, ViewFileSystem& view) {
    if (rank != victim) return;
    view.SetChange(AtRead(10, [](std::span<std::byte>) { ::raise(SIGSTOP); }));
  };
  Run(setup);
  int named = 0;
  for (const int r : {0, 2}) {
    ASSERT_TRUE(outcomes_[r].told);
    ASSERT_TRUE(outcomes_[r].peer_lost || outcomes_[r].peer_stopped);
    if (!outcomes_[r].peer_lost) continue;
    EXPECT_THAT(std::string(outcomes_[r].status), HasSubstr("for rank 1"));
    ++named;
  }
  EXPECT_GE(named, 1);
}

// What a rank reads is damaged after others have taken earlier chunks of it: they stop, and none
// has taken bytes of the damaged chunk.
TEST_F(Ranks, NothingIsTakenOfADamagedChunk) {
  for (const int near : {kWorld, 2, 0}) {
    SCOPED_TRACE(::testing::Message() << near << " ranks share memory");
    for (int r = 0; r < kWorld; ++r) outcomes_[r] = Outcome();
    const int reader = 2;
    Setup setup;
    setup.near = near;
    setup.prepare = [&](int rank, ViewFileSystem& view) {
      if (rank != reader) return;
      view.SetChange(AtRead(
          15, [](std::span<std::byte> bytes) { std::fill(bytes.begin(), bytes.end(), kDamage); }));
    };
    Run(setup);
    for (int r = 0; r < kWorld; ++r) {
      const Outcome& outcome = outcomes_[r];
      ASSERT_TRUE(outcome.told);
      if (r == reader) {
        EXPECT_THAT(std::string(outcome.status), HasSubstr("XXH3-128"));
        EXPECT_FALSE(outcome.peer_lost);
        EXPECT_TRUE(outcome.holds_damage);
        continue;
      }
      EXPECT_FALSE(outcome.holds_damage);
      EXPECT_STREQ(outcome.status, "ok");
      EXPECT_TRUE(outcome.peer_stopped);
      EXPECT_FALSE(outcome.peer_lost);
    }
  }
}

// Blocks of a chunk are handed on while it is read, but not the last one: whoever needs the chunk
// is not done, and stops.
TEST_F(RanksWithLargeChunks, NobodyEndsWithADamagedChunk) {
  for (const int near : {kWorld, 2, 0}) {
    for (const int block : {1, kBlocks - 1, kBlocks}) {
      SCOPED_TRACE(::testing::Message()
                   << "block " << block << ", " << near << " ranks share memory");
      for (int r = 0; r < kWorld; ++r) outcomes_[r] = Outcome();
      const int reader = 0;  // with one thread, which reads block after block
      Setup setup;
      setup.near = near;
      setup.prepare = [&](int rank, ViewFileSystem& view) {
        if (rank != reader) return;
        view.SetChange(AtRead(block, [](std::span<std::byte> bytes) {
          std::fill(bytes.begin(), bytes.end(), kDamage);
        }));
      };
      Run(setup);
      for (int r = 0; r < kWorld; ++r) {
        const Outcome& outcome = outcomes_[r];
        ASSERT_TRUE(outcome.told);
        EXPECT_FALSE(outcome.peer_lost);
        if (r == reader) {
          EXPECT_THAT(std::string(outcome.status), HasSubstr("XXH3-128"));
          continue;
        }
        EXPECT_STREQ(outcome.status, "ok");
        EXPECT_TRUE(outcome.peer_stopped);
        EXPECT_TRUE(!outcome.holds_damage || (reader < near && r < near && block < kBlocks));
      }
    }
  }
}

// Not even a rank that needs nothing of the block that is damaged.
TEST_F(RanksWithLargeChunks, WhoNeedsTheStartOfAChunkWaitsForItsEnd) {
  constexpr int kReader = 2;  // of that chunk
  cut_.model[1] = RankPart();
  cut_.model[1].AddBox(weight_, {{0, 0}, {10, weight_.shape[1]}});
  for (const int near : {kWorld, 0}) {
    SCOPED_TRACE(::testing::Message() << near << " ranks share memory");
    for (int r = 0; r < kWorld; ++r) outcomes_[r] = Outcome();
    Setup setup;
    setup.near = near;
    Run(setup);
    EXPECT_STREQ(outcomes_[1].status, "ok");
    EXPECT_STREQ(outcomes_[1].difference, "");
    EXPECT_FALSE(outcomes_[1].peer_stopped);
    setup.prepare = [&](int rank, ViewFileSystem& view) {
      if (rank != kReader) return;
      view.SetChange(AtRead(kBlocks, [](std::span<std::byte> bytes) {
        std::fill(bytes.begin(), bytes.end(), kDamage);
      }));
    };
    Run(setup);
    EXPECT_THAT(std::string(outcomes_[kReader].status), HasSubstr(": chunk 0 "));
    EXPECT_STREQ(outcomes_[1].status, "ok");
    EXPECT_TRUE(outcomes_[1].peer_stopped);
  }
}

}  // namespace
}  // namespace keel::checkpoint
