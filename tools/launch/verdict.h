// How an attempt ended on each node, and what follows for all of them.
//
// Pure and torch-free. Node 0's launcher decides; the others obey, so that all print the same
// cause, end with the same code, and restart together or not at all.
#pragma once

#include <cstdint>
#include <limits>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"

namespace keel::tools {

// How likely an end is the root of the others, most likely first.
enum class Blame {
  kKilled,     // by a signal that no launcher sent: nothing that a peer does kills in this way
  kFailed,     // by its own account, or its launcher's
  kPreempted,  // state saved, exit code 75
  kLostPeer,   // because another rank went away, exit code 69
  kEnded,      // by its launcher
};

// A rank, or a whole node, that did not end well.
struct Failure {
  Blame blame = Blame::kFailed;
  int exit_code = 1;    // to pass on: the rank's own, or 128 + its signal
  std::string what;     // "rank 3 on node 1 was killed by SIGKILL at step 12 (train)"
  std::string message;  // of its error file; empty: it left none
  std::string output;   // where its output is, empty: nowhere but here
};

// The end of a node's part in an attempt.
struct NodeEnd {
  static constexpr int64_t kUnreported = std::numeric_limits<int64_t>::max();

  std::optional<Failure> failure;  // the node's own root cause; none when all its ranks did well
  int64_t order = kUnreported;     // the how-manieth node that noticed a failure by itself
  bool last = false;               // no restart may follow: told to stop from outside
  bool lost = false;               // nothing was heard of it: said by node 0 in its place

  std::string ToText() const;
  static Result<NodeEnd> FromText(const std::string& text);
};

struct Verdict {
  int exit_code = 0;
  bool restart = false;
  std::vector<int> awaited;      // lost nodes, for whose launchers the restart waits
  std::optional<Failure> cause;  // set unless exit_code is 0

  std::string ToText() const;
  static Result<Verdict> FromText(const std::string& text);
};

// Not after usage, data and configuration errors, and a clean preemption.
bool WorthRestarting(int exit_code);

// `nodes` by their rank. The cause is the failure with the most blame; among equals, the one
// noticed first.
Verdict Decide(std::span<const NodeEnd> nodes, int attempt, int max_restarts);

}  // namespace keel::tools
