// SimRun: the life of one run directory, from a seed.
//
// A few starts of a job of 1 to 4 ranks on one simulated disk, each in its own weather, ended by
// its plan, by the death of a rank or by a power cut; then a start in fair weather, which must find
// everything in order. The ranks run the product's own Committer, Loader, Saver, CommitProtocol and
// retention as fibers; each call of the disk or the store takes virtual time, so that the seed
// decides how they interleave.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "common/log.h"
#include "tests/checkpoint/simulation/oracle.h"
#include "tests/checkpoint/simulation/scheduler.h"
#include "tests/checkpoint/simulation/store.h"
#include "tests/checkpoint/simulation/weather.h"
#include "tests/checkpoint/support/sim_file_system.h"
#include "tests/checkpoint/support/test_support.h"

namespace keel::checkpoint {
class Saver;
class SourceFence;
}  // namespace keel::checkpoint

namespace keel::checkpoint::testing {

// What a run went through, so that a test can see that nothing was tested in vain.
struct SimCounts {
  int64_t starts = 0, loads = 0, saves = 0, committed = 0, cancelled = 0, failed = 0;
  int64_t dead_ranks = 0, power_cuts = 0, disk_errors = 0, late_ranks = 0, reckless_found = 0;
  int64_t disk_calls = 0, switches = 0, checks = 0;
  void Add(const SimCounts& other);
  std::string Describe() const;
};

class SimRun {
 public:
  // `trace`: says on stderr what happens.
  SimRun(uint64_t seed, FiberStacks& stacks, bool trace);
  ~SimRun();

  // "" or what was violated.
  std::string Run();
  // Of everything that happened, in order, with its time.
  uint64_t digest() const { return digest_; }
  const SimCounts& counts() const { return counts_; }

 private:
  struct Rank;
  struct Start;

  void RunStart(bool fair);
  void RankMain(Rank& rank);
  bool OpenDirectory(Rank& rank);
  bool LoadState(Rank& rank);
  void SaveState(Rank& rank, Saver& saver);
  bool Gather(Rank& rank);
  void Train(Rank& rank, SourceFence& fence, const bool& over);
  void CheckOutcomes();

  Status BeforeDiskCall(Rank& rank, std::string_view operation, std::string_view path);
  void BeforeStoreCall(SimProcess& process, std::string_view operation, std::string_view key);
  void End();  // what the weather has planned
  void KillRank(Rank& rank);
  void CheckNames();
  void Check(const std::string& problem);
  void Note(std::string_view what);

  const TrainingState& StateOf(int64_t content);
  Rank& RankOf(const SimProcess& process);

  const uint64_t seed_;
  FiberStacks& stacks_;
  const bool trace_;
  Dice dice_;
  Logger log_;
  CheckpointOptions options_;
  Oracle oracle_;
  std::map<int64_t, TrainingState> states_;
  std::unique_ptr<SimFileSystem> disk_;
  int64_t step_ = 0;  // of the last save or load
  std::string violation_;
  uint64_t digest_ = 0;
  SimCounts counts_;
  std::unique_ptr<Start> start_;
};

}  // namespace keel::checkpoint::testing
