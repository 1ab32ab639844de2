// ProcessGroup over NCCL, for tensors in device memory.
#pragma once

#include <memory>

#include "parallel/process_group.h"

namespace keel::parallel {

std::unique_ptr<ProcessGroup> MakeNcclGroup(const Store& store, int global_rank,
                                            const GroupOptions& options);

}  // namespace keel::parallel
