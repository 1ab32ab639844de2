// DeskRun: the life of one asynchronous run, from a seed: a desk, trainers, and workers that come,
// die, lag and come back, over connections that delay, cut and repeat.
//
// In order or the ready ones first. The trainers take batches, publish versions and commit; the
// whole attempt may die and start again from its last commit. Tokens are a function of (sample,
// place, version), so that a token of other weights than its span says is seen. Knows of the
// protocol only what it returns.
#pragma once

#include <cstdint>
#include <string>

namespace keel::trainer::desk::testing {

struct DeskRunReport {
  std::string wrong;  // the first invariant that did not hold; "": all did
  int64_t events = 0;
  int64_t steps = 0;    // trained
  int64_t crashes = 0;  // of the attempt
  int64_t lost_workers = 0;
  int64_t stale_words = 0;  // that did not count
  int64_t reassigned_tokens = 0;
  int64_t asked_to_end = 0;  // responses that took too long
  int64_t ended_by_desk = 0;
  int64_t out_of_turn = 0;  // steps that took others than the first open positions
  int64_t mixed = 0;        // trained responses with tokens of several versions
  int64_t oldest = 0;       // staleness of a trained token, in steps
};

DeskRunReport RunDesk(uint64_t seed);

}  // namespace keel::trainer::desk::testing
