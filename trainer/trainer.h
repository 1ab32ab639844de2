// Trainer: a pre-training or SFT run from start to end, on one rank.
//
// Owns everything of the run; made and used by one thread. Run is collective over all ranks.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>

#include "common/log.h"
#include "parallel/launch_env.h"
#include "parallel/rank_status.h"
#include "trainer/config.h"

namespace keel::trainer {

// How a run ended.
enum class RunEnd { kFinished, kPreempted };

struct TrainerInputs {
  LoadedConfig loaded;
  parallel::LaunchEnv env;
  // Set from outside (a signal), to the monotonic clock's nanoseconds; 0 before that. All ranks
  // agree on the step, save, and return kPreempted.
  const std::atomic<int64_t>* stop_requested = nullptr;
  parallel::RankStatus* status = nullptr;  // may be null
};

// Throws keel::Error; see common/status.h for what becomes of it.
RunEnd RunTraining(const TrainerInputs& inputs, Logger& log);

}  // namespace keel::trainer
