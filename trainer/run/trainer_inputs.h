// What a run is given, and how it ends. Torch-free.
#pragma once

#include <atomic>
#include <cstdint>

#include "parallel/launch_env.h"
#include "parallel/rank_status.h"
#include "trainer/config/config.h"

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

}  // namespace keel::trainer
