// What the tests of crashes and of failing disks share: a job whose last save goes wrong, and what
// a restart must find then.
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "common/clock.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint::testing {

struct Scenario {
  std::string name;
  int world = 1;
  std::vector<int64_t> steps_before = {};  // saved before, with states 10, 20, ...
  int64_t step = 20;                       // of the save that goes wrong
  std::optional<int> keep = {};
  bool background = false;
  bool waves = false;  // staging memory of two chunks
  IoChoice io = IoChoice::kBuffered;
};
void PrintTo(const Scenario& scenario, std::ostream* out);
std::vector<Scenario> Scenarios();
std::string NameOf(const ::testing::TestParamInfo<Scenario>& one);

class CrashJob {
 public:
  explicit CrashJob(const Scenario& scenario);

  // The disk before the save that goes wrong.
  const SimFileSystem& before() const { return before_; }
  // That save, in a process of its own. A background save goes on beside a trainer that overwrites
  // its state.
  Status Save(FileSystem& disk, const Clock& clock = SystemClock());
  // The same, and once it has ended, and `between` has run, another one by the same process.
  struct TwoSaves {
    Status first;
    Status second;  // not ok when the job did not even start
  };
  TwoSaves SaveTwice(FileSystem& disk, const std::function<void()>& between);
  // Loads into memory that is cleared before.
  Result<std::optional<LoadRecord>> Load(FileSystem& disk);

  // A restart finds the old checkpoint or the new one, the new one if it was acknowledged; all that
  // is visible is whole; nothing is left behind. Fails the test otherwise.
  void ExpectOldOrNew(SimFileSystem& disk, bool acknowledged, const std::string& where);
  // And the job goes on from there.
  void ExpectGoesOn(SimFileSystem& disk, const std::string& where);

  static constexpr uint64_t kNewSeed = 777;
  // Of the second one of SaveTwice.
  static constexpr int64_t kSecondStep = 40;
  static TrainingState SecondState() { return MakeTrainingState(40, ModelSize::kTiny); }
  static constexpr int kCleared = 0x33;
  Cut& cut() { return cut_; }
  // Which state the memory holds, by comparing all of it; nothing for a mixture.
  struct InMemory {
    int64_t step = 0;
    bool is_new = false;  // of the save that went wrong
  };
  std::optional<InMemory> StateInMemory() const;
  bool MemoryIsCleared() const;

 private:
  CheckpointOptions Options() const;
  void RunRank(FileSystem& disk, Coordinator& coordinator, const Clock& clock,
               const std::function<void(int rank, Checkpointer& checkpointer)>& body,
               Status* opened);
  Status SaveOne(Checkpointer& checkpointer, int rank, int64_t step, uint64_t seed);

  const Scenario scenario_;
  Cut cut_;
  SimFileSystem before_;
};

}  // namespace keel::checkpoint::testing
