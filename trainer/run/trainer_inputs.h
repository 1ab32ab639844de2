// What a run is given, and how it ends. Torch-free.
#pragma once

#include <atomic>
#include <cstdint>
#include <string>

#include "parallel/launch_env.h"
#include "parallel/rank_status.h"
#include "trainer/config/config.h"

namespace keel::trainer {

// How a run ended.
enum class RunEnd { kFinished, kPreempted };

struct TrainerInputs {
  LoadedConfig loaded;
  parallel::LaunchEnv env;
  int job_ranks = 1;  // workers included, where `env` is of the ranks that train
  // keel rollout --join: the desk of a run, "HOST:PORT", for which this process generates; `env` is
  // then that of workers that were started together. Empty: a rank of the job.
  std::string join;
  // Set from outside (a signal), to the monotonic clock's nanoseconds; 0 before that. All ranks
  // agree on the step, save, and return kPreempted.
  const std::atomic<int64_t>* stop_requested = nullptr;
  parallel::RankStatus* status = nullptr;  // may be null
};

}  // namespace keel::trainer
