// The workers of the benchmarks that need torch, by what they are asked for.
#pragma once

#include <variant>

#include "bench/checkpoint_worker.h"
#include "bench/offload_worker.h"
#include "bench/rollout_worker.h"
#include "bench/sync_worker.h"
#include "bench/train_worker.h"

namespace keel::bench {

using Worker = std::variant<CheckpointWorkerOptions, OffloadWorkerOptions, RolloutWorkerOptions,
                            SyncWorkerOptions, TrainWorkerOptions>;

}  // namespace keel::bench
