// Whatever goes wrong on one rank ends a load of all alike, or makes all take an older step.
#include <gmock/gmock.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <mutex>

#include "checkpoint/checkpointer.h"
#include "tests/checkpoint/load/load_ways.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"
#include "tests/checkpoint/support/view_file_system.h"

namespace keel::checkpoint {
namespace {

using std::chrono::milliseconds;
using ::testing::AllOf;
using ::testing::AnyOf;
using ::testing::HasSubstr;
using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// A job whose state stands on a disk as step 10.
struct Saved {
  explicit Saved(int world) : job(world) { Save(job.state, 10); }
  // Other values of the same tensors, saved as step 20.
  TrainingState SaveNewer() {
    const TrainingState newer = {
        MakeState({job.state.model.at("model.w").info, job.state.model.at("model.norm").info}, 7),
        MakeState({job.state.optimizer.at("optimizer.master.w").info}, 8)};
    Save(newer, 20);
    return newer;
  }
  void Save(const TrainingState& state, int64_t step) {
    job.cut.Fill(state);
    ThrowIfError(SaveOn(disk, job.cut, step, SmallOptions()));
  }
  // A bit in the last part of the optimizer's state.
  void Damage(std::string_view directory) {
    const std::string path = std::string(directory) + "/actor/optimizer/rank_00001.safetensors";
    std::string content = disk.Content(path);
    content[content.size() - 5] ^= 1;
    disk.SetContent(path, content);
  }

  Replicated job;
  SimFileSystem disk;
};

bool HoldsOnly(const std::vector<std::byte>& memory, std::byte value) {
  return std::all_of(memory.begin(), memory.end(), [&](std::byte b) { return b == value; });
}

// Damage in the part of each reader in turn, on the disk or only in what that one rank is given.
TEST(Load, DamageInAnyReadersPartFailsAllAndIsNamed) {
  const int world = 3;
  Saved saved(world);
  auto& [job, disk] = saved;
  const TrainingState newer = saved.SaveNewer();
  for (size_t number = 0; number < 2 * kWays.size(); ++number) {
    const bool in_place = number % 2 == 0;
    const Way way = kWays[number / 2];
    for (int reader = 0; reader < world; ++reader) {
      for (const char* file : {"model/rank_00000", "model/rank_00001", "optimizer/rank_00002"}) {
        SCOPED_TRACE(::testing::Message() << file << " seen by rank " << reader << " in place "
                                          << in_place << " way " << static_cast<int>(way));
        // Wrong from the middle on, for this rank alone.
        Views views(disk, world);
        std::mutex mutex;
        bool seen = false;
        views[reader].SetChange([&](std::string_view path, int64_t offset, std::span<std::byte> b) {
          if (!path.starts_with("global_step_20") || path.find(file) == std::string_view::npos)
            return;
          const std::lock_guard lock(mutex);
          if (offset >= 8192) {
            b[b.size() / 2] ^= std::byte{1};
            seen = true;
          }
        });
        LoadSetup setup = views.Setup();
        WaySetup ways(way, world);
        setup.change = [&](int rank, LoadRequest& request) {
          ways.Apply(rank, &request);
          request.in_place = in_place;
          return true;
        };
        job.cut.Clear(0x33);
        const LoadOutcome outcome = LoadRanks(job.cut, setup);
        ExpectAllOk(outcome);
        // A rank that has none of this file to read does not see the damage.
        EXPECT_EQ(outcome.records[0]->step, seen ? 10 : 20);
        EXPECT_EQ(job.cut.FirstDifference(seen ? job.state : newer), "");
        if (!seen) continue;
        for (const auto& record : outcome.records) {
          ASSERT_EQ(record->skipped.size(), 1U);
          EXPECT_THAT(record->skipped[0].reason,
                      AllOf(HasSubstr("rank " + std::to_string(reader)), HasSubstr(file),
                            HasSubstr("chunk"), HasSubstr("step 20"),
                            AnyOf(HasSubstr("model.w"), HasSubstr("optimizer.master.w"))));
        }
      }
    }
  }
}

TEST(Load, AFailedLoadLeavesLiveMemoryOrSaysThatItDidNot) {
  const int world = 2;
  Saved saved(world);
  auto& [job, disk] = saved;
  saved.Damage("global_step_10");
  for (const bool in_place : {false, true}) {
    job.cut.Clear(0x44);
    const auto loaded =
        LoadFrom(disk, job.cut, [&](LoadRequest& request) { request.in_place = in_place; });
    EXPECT_EQ(loaded.status().code(), StatusCode::kDataLoss);
    EXPECT_THAT(loaded.status().message(), HasSubstr("none is valid"));
    if (in_place) {
      EXPECT_THAT(loaded.status().message(), HasSubstr("end this process"));
      const auto scratch = LoadFrom(
          disk, job.cut, [&](LoadRequest& request) { request.in_place = request.scratch = true; });
      EXPECT_THAT(scratch.status().message(),
                  AllOf(HasSubstr("none is valid"), Not(HasSubstr("end this process"))));
      continue;
    }
    for (const auto* parts : {&job.cut.model, &job.cut.optimizer}) {
      for (const RankPart& part : *parts) {
        for (const auto& block : part.memory) EXPECT_TRUE(HoldsOnly(*block, std::byte{0x44}));
      }
    }
  }
}

// In place, what a damaged checkpoint has written must not show through where an older one is
// allowed to lack a tensor.
TEST(Load, InPlaceNeverMixesTwoSteps) {
  const int world = 2;
  Saved saved(world);
  auto& [job, disk] = saved;
  for (int r = 0; r < world; ++r) {
    job.cut.model[static_cast<size_t>(r)].AddBox({"model.extra", DType::kF32, Dims{4096}},
                                                 Box::Whole(Dims{4096}), r);
  }
  TrainingState with_extra = job.state;
  with_extra.model.merge(MakeState({{"model.extra", DType::kF32, Dims{4096}}}, 9));
  saved.Save(with_extra, 20);
  saved.Damage("global_step_20");
  job.cut.Clear(0x55);
  const auto mixed = LoadFrom(disk, job.cut, [&](LoadRequest& request) {
    request.in_place = true;
    request.allow_missing = {"model.extra"};
  });
  EXPECT_EQ(mixed.status().code(), StatusCode::kConfig);
  EXPECT_THAT(mixed.status().message(),
              AllOf(HasSubstr("global_step_10"), HasSubstr("damaged newer checkpoint"),
                    HasSubstr("end this process")));
  // With staging it is the older one, and the tensor that it lacks is as it was.
  job.cut.Clear(0x55);
  const auto staged = LoadFrom(
      disk, job.cut, [&](LoadRequest& request) { request.allow_missing = {"model.extra"}; });
  ASSERT_TRUE(staged.ok()) << staged.status().ToString();
  EXPECT_EQ((*staged)->step, 10);
  for (const RankPart& part : job.cut.model) {
    EXPECT_TRUE(HoldsOnly(*part.memory[2], std::byte{0x55}));
  }
}

TEST(Load, ARankThatDiesOrStallsInTheExchangeIsNamed) {
  const int world = 3;
  Saved saved(world);
  auto& [job, disk] = saved;
  // A channel that ends one rank's part in the n-th exchange.
  class Dying : public PeerChannel {
   public:
    Dying(PeerChannel& real, int calls) : real_(real), left_(calls) {}
    int rank() const override { return real_.rank(); }
    int world() const override { return real_.world(); }
    Status Exchange(std::span<const Send> sends, std::span<const Receive> receives,
                    milliseconds deadline) override {
      if (left_-- <= 0) return Status(StatusCode::kUnavailable, "killed");
      return real_.Exchange(sends, receives, deadline);
    }

   private:
    PeerChannel& real_;
    int left_;
  };
  // Four hand manifest and index on; over shared memory there are no more than two after that.
  for (int number = 0; number < 9 * world; ++number) {
    const int victim = number % world;
    const auto [calls, share_memory] =
        std::vector<std::pair<int, bool>>{{0, true},  {3, true},  {4, true},  {5, true}, {1, false},
                                          {4, false}, {5, false}, {6, false}, {8, false}}
            .at(static_cast<size_t>(number / world));
    {
      SCOPED_TRACE(::testing::Message()
                   << "rank " << victim << " in exchange " << calls << " memory " << share_memory);
      job.cut.Clear(0x66);
      Views views(disk, world);
      LoadSetup setup = views.Setup();
      setup.options.deadline = milliseconds(300);
      std::unique_ptr<Dying> dying;
      setup.change = [&, share = share_memory, count = calls](int rank, LoadRequest& request) {
        request.share_memory = share;
        if (rank == victim) {
          dying = std::make_unique<Dying>(*request.channel, count);
          request.channel = dying.get();
        }
        return true;
      };
      const LoadOutcome outcome = LoadRanks(job.cut, setup);
      for (int r = 0; r < world; ++r) {
        const Status& status = outcome.statuses[static_cast<size_t>(r)];
        EXPECT_FALSE(status.ok());
        if (r == victim) continue;
        // By those who waited for it; or by itself, while it has the floor: before anything is
        // read.
        const std::string name = std::to_string(victim);
        EXPECT_THAT(status.code(), AnyOf(StatusCode::kDeadlineExceeded, StatusCode::kUnavailable));
        EXPECT_THAT(status.message(),
                    AnyOf(HasSubstr("for rank " + name), HasSubstr("rank " + name + ": killed")));
      }
      for (const RankPart& part : job.cut.model) {
        EXPECT_EQ(static_cast<int>((*part.memory[0])[0]), 0x66);
      }
    }
  }
}

// What an Error says is kept: not every exception is a bug of this program.
TEST(Load, AnErrorThatIsThrownKeepsItsCode) {
  Saved saved(2);
  for (int victim = 0; victim < 2; ++victim) {
    Views views(saved.disk, 2);
    views[victim].SetHidden([victim](std::string_view path) -> bool {
      // Rank 0 reads the index for all; tensors are read by each.
      if (!path.ends_with(victim == 0 ? "index.bin" : ".safetensors")) return false;
      throw Error(StatusCode::kUnavailable, "the mount has gone");
    });
    saved.job.cut.Clear(0x33);
    const LoadOutcome outcome = LoadRanks(saved.job.cut, views.Setup());
    const Status& status = outcome.statuses[static_cast<size_t>(victim)];
    EXPECT_EQ(status.code(), StatusCode::kUnavailable) << status.ToString();
    EXPECT_THAT(status.message(), HasSubstr("the mount has gone"));
  }
}

TEST(Load, RanksThatSeeOlderOrOtherThingsAllTakeTheSameStep) {
  const int world = 3;
  Saved saved(world);
  auto& [job, disk] = saved;
  const TrainingState newer = saved.SaveNewer();
  const auto expect = [&](const Views& views, milliseconds grace, int64_t step) {
    LoadSetup setup = views.Setup();
    setup.options.visibility_grace = grace;
    job.cut.Clear(0x11);
    const LoadOutcome outcome = LoadRanks(job.cut, setup);
    ExpectAllOk(outcome);
    for (const auto& record : outcome.records) EXPECT_EQ(record->step, step);
    EXPECT_EQ(job.cut.FirstDifference(step == 20 ? newer : job.state), "");
  };
  for (int r = 0; r < world; ++r) {
    {
      SCOPED_TRACE("never sees the new directory");
      Views views(disk, world);
      views[r].SetHidden([](std::string_view path) { return path.starts_with("global_step_20"); });
      expect(views, milliseconds(0), 10);
    }
    {
      SCOPED_TRACE("sees the new directory a little later");
      Views views(disk, world);
      const auto until = std::chrono::steady_clock::now() + milliseconds(r == 0 ? 0 : 300);
      views[r].SetHidden([until](std::string_view path) {
        return path.starts_with("global_step_20") && std::chrono::steady_clock::now() < until;
      });
      expect(views, milliseconds(20'000), 20);
    }
    {
      SCOPED_TRACE("sees one file of it later than the rest");
      Views views(disk, world);
      const auto until = std::chrono::steady_clock::now() + milliseconds(r == 0 ? 0 : 300);
      views[r].SetHidden([until](std::string_view path) {
        return path == "global_step_20/actor/model/rank_00001.safetensors" &&
               std::chrono::steady_clock::now() < until;
      });
      expect(views, milliseconds(20'000), 20);
    }
    if (r > 0) {
      SCOPED_TRACE("sees another step under this name");
      Views views(disk, world);
      views[r].SetAlias([](std::string_view path) {
        std::string name(path);
        if (name.starts_with("global_step_20")) name.replace(0, 14, "global_step_10");
        return name;
      });
      expect(views, milliseconds(0), 10);
    }
    {
      SCOPED_TRACE("sees old bytes of one file");
      Views views(disk, world);
      views[r].SetAlias([](std::string_view path) {
        std::string name(path);
        if (name == "global_step_20/actor/optimizer/rank_00000.safetensors")
          name.replace(0, 14, "global_step_10");
        return name;
      });
      // Only its reader can tell.
      LoadSetup setup = views.Setup();
      job.cut.Clear(0x11);
      const LoadOutcome outcome = LoadRanks(job.cut, setup);
      ExpectAllOk(outcome);
      EXPECT_EQ(job.cut.FirstDifference(outcome.records[0]->step == 20 ? newer : job.state), "");
      EXPECT_EQ(outcome.records[0]->step, r == 0 ? 10 : 20);
    }
  }
}

}  // namespace
}  // namespace keel::checkpoint
