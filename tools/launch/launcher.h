// Launcher: starts the ranks of one node, watches them, ends all when one fails.
//
// torchrun's contract (variables, restarts, error files) in one process: each rank is a child in a
// process group of its own, dies with the launcher, and has its output prefixed line by line. With
// several nodes, their launchers agree on each end through the job's store (JobLink), which node
// 0's serves. Torch-free. Used from the main thread; Launch blocks until all is over.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"

namespace keel::tools {

// For ranks to leave when nothing is left for them to do.
inline constexpr std::chrono::milliseconds kShutdownTimeout{30'000};

struct LaunchOptions {
  int nnodes = 1;
  int nproc_per_node = 1;
  int node_rank = 0;
  std::string master_addr;  // empty: 127.0.0.1 on one node
  int master_port = 0;      // 0: any free one, on one node
  std::string run_id = "none";
  std::string job_secret;  // proved before the store answers; empty: none
  int max_restarts = 0;
  std::string log_dir;  // empty: output only through the launcher
  std::string role = "default";
  // --roles: how many of the job's ranks, the first ones, train; those behind them generate for
  // them, are started again alone when they fail, and decide nothing. Unset: there are no roles.
  // 0: all generate, for another job. Each is started again alone, `max_restarts` times; one that
  // is not any more is the job's failure, once the others have ended, too.
  std::optional<int> trainers;
  std::vector<int> local_ranks_filter;  // whose output is shown; empty: all
  bool tee = true;                      // false: to the log files alone (needs log_dir)
  // Grace after a passed-on signal. Unset: as long as the ranks take; kShutdownTimeout once one of
  // them has ended, and after a second signal.
  std::optional<std::chrono::milliseconds> shutdown_timeout;
  std::chrono::milliseconds failure_grace{2'500};   // grace of the others after one has failed
  std::chrono::milliseconds join_timeout{600'000};  // for all nodes to be there, or to come back
  std::chrono::milliseconds silence_limit{60'000};  // after which a node counts as lost
  std::vector<std::string> command;                 // program and arguments of a rank
  bool own_command = false;  // it is a keel, which takes signals that were held back meanwhile
  std::vector<std::string> Validate() const;  // every problem, as sentences
};

// Returns the exit code to pass on, the same on every node: 0, the root cause's own, or 128 + its
// signal.
Result<int> Launch(const LaunchOptions& options);

}  // namespace keel::tools
