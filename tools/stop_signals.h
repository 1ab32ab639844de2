// What signals ask of keel train and keel rollout, from the first moment of the process on: long
// before libtorch is there, which takes its time to load.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <string_view>

#include "parallel/rank_status.h"

namespace keel::tools {

// Lives as long as the process: a signal may come until it has ended.
struct StopState {
  // When the first SIGTERM or SIGUSR1 came, in ns of the monotonic clock; 0: none has.
  std::atomic<int64_t> requested{0};
  // Where the launcher reads the step, and that the end was asked for. Null before the signals are
  // taken.
  std::unique_ptr<parallel::RankStatus> status;
};
StopState& TheStopState();

// To be called first of all, on the main thread. Where `command` is train or rollout, SIGTERM and
// SIGUSR1 are noted in TheStopState; a second one, more than a second later, ends the process. The
// launcher starts ranks that are Keel's with these signals held back until here.
void TakeStopSignals(std::string_view command);

}  // namespace keel::tools
