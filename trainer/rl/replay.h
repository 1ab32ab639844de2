// Replay: a step's responses from the file that an earlier run dumped.
#pragma once

#include <ATen/ATen.h>

#include <string>

#include "parallel/groups/process_group.h"
#include "trainer/data/rollout_batch.h"

namespace keel::trainer::rl {

// Throws on every rank what one of them finds wrong with its file, and where files are not the
// same. Collective over `world`, whose tensors are on `device`.
RolloutBatch ReplayDump(parallel::ProcessGroup& world, at::Device device, const std::string& path,
                        const DumpShape& shape);

}  // namespace keel::trainer::rl
