// Assembly: how the launchers of all nodes come together before an attempt.
//
// Before the first one all join. When a node was lost, the others wait for a launcher that is
// started there again, with the same flags, to take its place. Node 0 gathers, and tells the others
// what became of it. Used by JobLink's thread.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "tools/launch/job_link_options.h"
#include "tools/launch/job_store.h"

namespace keel::tools {

class Assembly {
 public:
  // `pause` is the wait of one round; false: the launcher wants to be gone. All outlive this.
  Assembly(const JobLinkOptions& options, JobStore& store, std::function<bool()> pause)
      : options_(options), store_(store), pause_(std::move(pause)) {}

  // The attempt with which this launcher begins: 0, or once node 0 has given an earlier launcher of
  // this node up, the next. kUsage while that one lives.
  Result<int> TakePlace();
  // Before `attempt`: waits until all of `nodes` have come. On every node the same Status, which
  // says which have not.
  Status Gather(int attempt, const std::vector<int>& nodes);

 private:
  struct Outcome {
    StatusCode code = StatusCode::kOk;
    std::string what;
  };
  std::string Key(int attempt, const char* name) const;
  // kUsage where this node was started with other flags than node 0, once that has said its own.
  Status CheckAgreement();
  Status Hear(int attempt);
  Result<bool> Decide(int attempt, const std::vector<int>& nodes, bool late, Outcome& outcome);
  Status Beat();

  const JobLinkOptions& options_;
  JobStore& store_;
  const std::function<bool()> pause_;
  std::chrono::steady_clock::time_point next_beat_;
};

}  // namespace keel::tools
