// Ledger: every sample of an asynchronous RL run that no step has taken: what a checkpoint must
// hold so that none is lost and none is trained twice.
//
// The frontier is the first position that no step has taken; all before it are trained, and of
// those behind it the ones that were taken out of turn. Which of the samples behind it a worker has
// at the moment is not part of it: workers do not outlive the trainers' attempt.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <set>

#include "trainer/data/rollout_batch.h"
#include "trainer/desk/samples.h"

namespace keel::trainer::desk {

// A response that is complete and scored, and the weights that chose its tokens.
struct Finished {
  rl::Response response;
  std::vector<VersionSpan> spans;
};

struct Ledger {
  int64_t frontier = 0;
  std::set<int64_t> taken;  // positions behind the frontier that a step has taken
  int64_t steps = 0;        // that have taken their samples
  // Of each version that a sample here has tokens of, or that workers may serve: how many steps'
  // updates its weights hold.
  std::map<int64_t, int64_t> versions;
  // Of open positions; one that is missing has not been begun.
  struct Entry {
    Partial partial;
    int64_t spent_ms = 0;              // that workers had it, where that is bounded
    std::optional<Finished> finished;  // then `partial` is empty
  };
  std::map<SampleId, Entry> samples;

  // No step has taken it.
  bool open(int64_t position) const { return position >= frontier && !taken.contains(position); }
  int64_t trained() const { return frontier + static_cast<int64_t>(taken.size()); }  // positions
};

}  // namespace keel::trainer::desk
