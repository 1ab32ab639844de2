// The commit protocol under faults: each call fails once, or is the last one before a power cut.
// What is found afterwards is the old checkpoint or the new one, never a mix, never an error, no
// debris.
#include <gmock/gmock.h>

#include "checkpoint/catalog.h"
#include "checkpoint/checkpointer.h"
#include "checkpoint/verifier.h"
#include "tests/checkpoint/sim_file_system.h"
#include "tests/checkpoint/test_support.h"

namespace keel::checkpoint {
namespace {

using namespace keel::checkpoint::testing;  // NOLINT: the helpers of these tests

// What a run does while things fail: the state it saves, and as which step.
struct Scenario {
  std::string name;
  int world = 1;
  std::vector<int64_t> steps_before = {10};  // saved before, with states 10, 20, ...
  int64_t step = 20;
  std::optional<int> keep;
};

std::vector<Scenario> Scenarios() {
  return {
      {"first save ever", 1, {}, 10, {}},           {"a newer step", 1, {10}, 20, {}},
      {"a newer step, two ranks", 2, {10}, 20, {}}, {"keep one", 1, {10}, 20, 1},
      {"keep two of three", 2, {10, 20}, 30, 2},    {"the same step again", 1, {10, 20}, 20, {}}};
}

class Crash : public ::testing::TestWithParam<Scenario> {
 protected:
  Crash() : cut_({GetParam().world, true, true, true}, 1, ModelSize::kTiny) {
    for (const int64_t step : GetParam().steps_before) {
      cut_.Fill(MakeTrainingState(static_cast<uint64_t>(step), ModelSize::kTiny));
      ThrowIfError(SaveOn(base_, cut_, step, SmallOptions()));
      last_seed_ = static_cast<uint64_t>(step);
    }
  }

  CheckpointOptions Options() const {
    CheckpointOptions options = SmallOptions();
    options.max_ckpts_to_keep = GetParam().keep;
    return options;
  }

  Status SaveNew(SimFileSystem& disk) {
    cut_.Fill(MakeTrainingState(kNewSeed, ModelSize::kTiny));
    return SaveOn(disk, cut_, GetParam().step, Options());
  }

  // The state that a restart finds: a seed, or nothing when the directory is empty.
  std::optional<uint64_t> Restart(SimFileSystem& disk, const std::string& where) {
    cut_.Clear(0x33);
    const auto loaded = LoadFrom(disk, cut_);
    if (!loaded.ok()) {
      ADD_FAILURE() << where << ": " << loaded.status().ToString();
      return std::nullopt;
    }
    for (const FileInfo& info : ValueOrThrow(disk.List("."))) {
      EXPECT_FALSE(info.name.starts_with(".tmp-") || info.name.starts_with(".old-") ||
                   info.name.starts_with(".trash-"))
          << where << ": " << info.name << " is left";
    }
    // What is visible is whole, the older ones too.
    for (const CatalogEntry& entry : ValueOrThrow(ListCheckpoints(disk))) {
      const VerifyReport report = VerifyCheckpoint(disk, entry.directory, 1);
      EXPECT_TRUE(report.problems.empty()) << where << ": " << report.problems[0];
    }
    if (!loaded->has_value()) return std::nullopt;
    EXPECT_TRUE((*loaded)->skipped.empty()) << where << ": " << (*loaded)->skipped[0].reason;
    for (const uint64_t seed : {kNewSeed, last_seed_}) {
      if (cut_.FirstDifference(MakeTrainingState(seed, ModelSize::kTiny)) == "") return seed;
    }
    ADD_FAILURE() << where << ": a mixed or unknown state was loaded";
    return std::nullopt;
  }

  // Old or new; new when it was acknowledged.
  void ExpectOldOrNew(SimFileSystem& disk, bool acknowledged, const std::string& where) {
    const std::optional<uint64_t> found = Restart(disk, where);
    if (acknowledged) {
      EXPECT_EQ(found, std::optional(kNewSeed)) << where << ": an acknowledged save is gone";
    } else if (!GetParam().steps_before.empty()) {
      EXPECT_TRUE(found.has_value()) << where << ": the old checkpoint is gone";
    }
    // And the run goes on.
    cut_.Fill(MakeTrainingState(99, ModelSize::kTiny));
    EXPECT_EQ(SaveOn(disk, cut_, 50, Options()).ToString(), "ok") << where;
  }

  static constexpr uint64_t kNewSeed = 777;
  Cut cut_;
  SimFileSystem base_;
  uint64_t last_seed_ = 0;
};

TEST_P(Crash, PowerCutAtEveryCall) {
  const auto clean = base_.Clone();
  clean->ResetCalls();
  ASSERT_EQ(SaveNew(*clean).ToString(), "ok");
  const int64_t calls = clean->calls();
  EXPECT_GT(calls, 50);  // the loop does go over the protocol
  for (int64_t n = 1; n <= calls + 2; ++n) {
    const auto disk = base_.Clone();
    disk->SetFault([n](int64_t call, std::string_view operation, std::string_view path) {
      if (call < n) return Status::Ok();
      return Status(StatusCode::kIo,
                    std::string(operation) + " " + std::string(path) + ": the machine is off");
    });
    const bool acknowledged = SaveNew(*disk).ok();
    for (const auto& [survives, seeds] : {std::pair(SimFileSystem::Survives::kNothing, 1),
                                          std::pair(SimFileSystem::Survives::kEverything, 1),
                                          std::pair(SimFileSystem::Survives::kSubset, 6)}) {
      for (int seed = 0; seed < seeds; ++seed) {
        const auto found = disk->AfterPowerCut(survives, static_cast<uint64_t>(n * 100 + seed));
        ExpectOldOrNew(*found, acknowledged,
                       "call " + std::to_string(n) + ", survival " +
                           std::to_string(static_cast<int>(survives)) + "/" + std::to_string(seed));
        if (HasFailure()) return;
      }
    }
  }
}

TEST_P(Crash, EveryCallFailsOnce) {
  const auto clean = base_.Clone();
  clean->ResetCalls();
  ASSERT_EQ(SaveNew(*clean).ToString(), "ok");
  const int64_t calls = clean->calls();
  for (const StatusCode code : {StatusCode::kIo, StatusCode::kNoSpace}) {
    for (int64_t n = 1; n <= calls + 2; ++n) {
      const auto disk = base_.Clone();
      std::string failed;
      disk->SetFault(
          [&failed, n, code](int64_t call, std::string_view operation, std::string_view path) {
            if (call != n) return Status::Ok();
            failed = std::string(operation) + " " + std::string(path);
            return Status(code, failed + ": injected");
          });
      const Status saved = SaveNew(*disk);
      disk->SetFault({});
      const std::string where = "call " + std::to_string(n) + " (" + failed + ")";
      ExpectOldOrNew(*disk, saved.ok(), where);
      if (HasFailure()) return;
    }
  }
}

// A power cut while the debris of a first one is being collected.
TEST_P(Crash, PowerCutDuringRecovery) {
  const auto clean = base_.Clone();
  clean->ResetCalls();
  ASSERT_EQ(SaveNew(*clean).ToString(), "ok");
  const int64_t calls = clean->calls();
  for (int64_t n = 5; n <= calls; n += 7) {
    const auto disk = base_.Clone();
    disk->SetFault([n](int64_t call, std::string_view, std::string_view) {
      return call < n ? Status::Ok() : Status(StatusCode::kIo, "the machine is off");
    });
    const bool acknowledged = SaveNew(*disk).ok();
    for (int64_t m = 1; m < 40; m += 3) {
      const auto first =
          disk->AfterPowerCut(SimFileSystem::Survives::kSubset, static_cast<uint64_t>(n));
      first->SetFault([m](int64_t call, std::string_view, std::string_view) {
        return call < m ? Status::Ok() : Status(StatusCode::kIo, "the machine is off again");
      });
      (void)LoadFrom(*first, cut_);
      const auto second =
          first->AfterPowerCut(SimFileSystem::Survives::kSubset, static_cast<uint64_t>(m));
      ExpectOldOrNew(*second, acknowledged,
                     "calls " + std::to_string(n) + ", " + std::to_string(m));
      if (HasFailure()) return;
    }
  }
}

INSTANTIATE_TEST_SUITE_P(Scenarios, Crash, ::testing::ValuesIn(Scenarios()),
                         [](const ::testing::TestParamInfo<Scenario>& one) {
                           std::string name = one.param.name;
                           std::replace_if(
                               name.begin(), name.end(), [](char c) { return !std::isalnum(c); },
                               '_');
                           return name;
                         });

}  // namespace
}  // namespace keel::checkpoint
