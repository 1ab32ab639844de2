// What the launchers of a job's nodes agree on, and the keys by which they do, all under the job's
// id:
//
//   join/N/count          launchers that came as node N
//   beat/N                counts as long as node N's launcher lives
//   place/N               the attempt at which a launcher may take the place of lost node N; ""
//   none place/N/A/count       launchers that wanted it; the first has it attempt_A/join/N      the
//   flags of node N, which has come to attempt A attempt_A/joined      what became of the gathering
//   before attempt A (assembly.cc) attempt_A/failures    counts the nodes that noticed a failure by
//   themselves; its presence tells
//                         all to end their ranks
//   attempt_A/end/N       NodeEnd of node N
//   attempt_A/verdict     Verdict of node 0
//   left                  counts the nodes that know the last verdict
#pragma once

#include <chrono>
#include <string>

#include "common/status.h"

namespace keel::tools {

inline constexpr std::chrono::seconds kBeatInterval{1};

struct JobLinkOptions {
  int node = 0;
  int nnodes = 1;
  std::string address;    // of the store, for messages
  std::string agreement;  // the flags that must be the same on every node, as text
  int max_restarts = 0;
  std::chrono::milliseconds join_deadline{
      600'000};  // for all nodes to be there, and for a lost one to come back
  std::chrono::milliseconds silence_limit{60'000};  // after which a node counts as lost
  // The same once a failure is known: nothing is left to lose but the time of the others.
  std::chrono::milliseconds failing_silence_limit{10'000};
  std::chrono::milliseconds interval{250};  // between two looks at the store
};

// Returns what a failed call of the store means to this node.
Status StoreLost(const JobLinkOptions& options, const Status& status);

}  // namespace keel::tools
