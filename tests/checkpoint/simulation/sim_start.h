// One start of the job that SimRun simulates, and its ranks.
#pragma once

#include <fmt/format.h>

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/run/run_lock.h"
#include "checkpoint/save/snapshot.h"
#include "tests/checkpoint/simulation/sim_run.h"

namespace keel::checkpoint::testing {

// Of every wait for a peer.
inline constexpr std::chrono::milliseconds kSimDeadline{2'000};

struct SimRun::Rank {
  SimProcess process;
  std::unique_ptr<SimFileSystem> fs;
  std::unique_ptr<Coordinator> coordinator;
  std::unique_ptr<RunLock> lock;      // rank 0
  std::shared_ptr<Snapshot*> cancel;  // of the save in flight; null when it has ended
  int64_t uses = 0;                   // makes tags unique
  int errno_sticks = 0;
  SimTime errno_until{};

  std::string NextTag(std::string_view what) { return fmt::format("{}/{}", what, ++uses); }
};

// One start of the job, from the first rank's first call to the last one's end.
struct SimRun::Start {
  struct Outcome {
    int rank = 0;
    Status status;
    bool dead = false;
    SimTime took{};
  };
  struct Save {
    int64_t content = 0;
    bool undisturbed = true;  // by disk, death or change of mind
    bool disk_error = false;
    std::vector<Outcome> outcomes{};
  };

  Start(FiberStacks& stacks, const Weather& weather_in, const LayoutOptions& layout, uint64_t seed)
      : weather(weather_in), scheduler(stacks), cut(layout, seed, ModelSize::kTiny) {}

  const Weather weather;
  Scheduler scheduler;
  Cut cut;
  std::unique_ptr<SimStore> store;
  std::vector<std::unique_ptr<Rank>> ranks;
  std::unique_ptr<SimFileSystem> after_cut;  // set when the power went
  int64_t count_down = 0;                    // of the calls until the end
  bool disk_disturbed = false;               // since the last save or load began
  bool names_changed = false;
  bool doomed = false;  // someone died: the training cannot go on
  int arrived = 0;
  Scheduler::Gate meeting;
  int saves_planned = 0;
  std::vector<Save> saves;
  std::vector<Outcome> loads;
};

}  // namespace keel::checkpoint::testing
