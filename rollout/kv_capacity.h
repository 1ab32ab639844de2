// How many blocks of the KV cache, and how many sequences' states, a rank's memory has room for.
#pragma once

#include <cstdint>

#include "model/ops/kv_cache.h"
#include "parallel/groups/cuda_module.h"
#include "parallel/groups/process_group.h"
#include "rollout/kv_groups.h"

namespace keel::rollout {

struct KvBudget {
  // Of keys, values and states. 0: on CPU what max_num_seqs texts of max_model_len tokens take, at
  // most 1 GiB; on CUDA gpu_memory_utilization of what is free.
  int64_t bytes = 0;
  double gpu_memory_utilization = 0.5;
  int64_t max_num_seqs = 1;
  int64_t max_model_len = 1;
  int64_t at_once = 1;  // tokens in one forward
  int32_t block_size = 16;
};

// The groups of a model's layers; a window that no text outgrows is none.
KvGroups GroupsOf(const model::KvShape& shape, int64_t max_model_len);

// What this process can still take of a GPU: what is of no process, and what its own allocator
// keeps but no tensor has. Neither other processes' memory nor the context's is counted as free.
int64_t UsableBytes(const parallel::CudaMemory& memory);

struct KvCapacity {
  int64_t blocks = 0;
  // Sequences that can have states at a time, at most max_num_seqs; 0: no layer has one.
  int64_t states = 0;
};

// Throws Error(kConfig) where not one block fits.
KvCapacity CapacityOf(const KvBudget& budget, const model::KvShape& shape, const KvGroups& groups);

// What every rank of `tp` has room for. Collective.
KvCapacity LeastCapacity(const KvCapacity& mine, parallel::ProcessGroup& tp, at::Device device);

}  // namespace keel::rollout
