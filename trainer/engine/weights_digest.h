// One number for weights of a model, however they are spread over ranks.
#pragma once

#include <cstdint>

#include "common/tensors/shard_table.h"
#include "parallel/groups/process_group.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {

// The sum over tensors of DigestWeight times their digest (common/tensors/tensor_digest.h): the
// same under every layout, after a weight sync (WeightSyncReport) and of what a save writes
// (SaveRequest::digest_role). Loads the weights for the call when they are on the host. Collective
// over `world`, all ranks of the engine's context.
uint64_t WeightsDigest(TrainEngine& engine, TrainEngine::Which which,
                       parallel::ProcessGroup& world);
// The same of the ranks' tables, whose views are of `device`.
uint64_t WeightsDigest(const ShardTable& table, at::Device device, parallel::ProcessGroup& group);

}  // namespace keel::trainer
