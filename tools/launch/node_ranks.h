// NodeRanks: the ranks of this node during one attempt: started together, watched, ended together.
//
// Each is a Child with torchrun's variables. Used from the main thread.
#pragma once

#include <chrono>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "tools/launch/child.h"
#include "tools/launch/launcher.h"
#include "tools/launch/scratch_directory.h"
#include "tools/launch/verdict.h"

namespace keel::tools {

class NodeRanks {
 public:
  // `address` and `port`: of the job's store. `job_start`: by the monotonic clock. All three
  // references outlive this.
  NodeRanks(const LaunchOptions& options, const std::string& address, int port,
            std::chrono::nanoseconds job_start, int attempt, ScratchDirectory& scratch);
  ~NodeRanks();  // kills what still runs
  NodeRanks(const NodeRanks&) = delete;
  NodeRanks& operator=(const NodeRanks&) = delete;

  // All ranks, or none.
  Status Start();
  bool alive() const;
  // One of those alive trains.
  bool trains() const;
  // All generate for another job: what becomes of one is nothing to the others, but for what would
  // become of them, too.
  bool all_work_alone() const;
  // None of those alive trains, and some did: the others have nothing left to do.
  bool only_workers() const;
  // One round: waits a moment for output, or until `wake_fd` is readable; passes output on, reaps.
  void Pump(int wake_fd);
  // The exit code of the rank that was the first to end in a way that ends the others; none yet: 0.
  int first_failure() const;

  // To all but, for signals that ask to stop, workers beside ranks that train: these need them
  // until their last step is done, and tell them then.
  void Signal(int number);
  // SIGKILL to what is still alive then. The earliest deadline counts.
  void KillAfter(std::chrono::milliseconds grace);
  // After the last has ended: ends what they have left, and passes the rest of their output on.
  void Finish();
  // One of them says that it has ended because it was told to, by others than this launcher.
  bool stopped() const;
  // The failure that the node's others are most likely owed to; none: all did well.
  std::optional<Failure> RootCause() const;

 private:
  struct Rank;
  Status StartRank(Rank& rank, int local);
  bool IsWorker(const Rank& rank) const;
  // Workers that have failed are, for now.
  bool starts_again() const;
  // Workers that have failed, each after a pause; nobody once this node is to end.
  void StartWorkersAgain();
  void Reap();
  // What killed ranks have left; false: nobody is left.
  bool EndOrphans();
  Failure Describe(const Rank& rank) const;

  const LaunchOptions& options_;
  const std::string& address_;
  const int port_;
  const std::chrono::nanoseconds job_start_;
  const int attempt_;
  ScratchDirectory& scratch_;
  std::vector<Rank> ranks_;
  std::vector<size_t> failed_;  // local ranks, in the order in which they were reaped
  bool signalled_ = false;
  bool ending_ = false;  // workers are not started again
  std::chrono::steady_clock::time_point kill_at_ = std::chrono::steady_clock::time_point::max();
};

}  // namespace keel::tools
