// How RL frameworks bring the trainer's weights to the rollout, over Keel's own process groups: the
// peers of `keel bench sync`.
//
// Both go tensor by tensor through the whole model; what is where is agreed on in the constructor
// and costs Run nothing. They prove nothing of what arrives. For host memory; used from one thread.
#pragma once

#include <ATen/ATen.h>

#include <string>
#include <vector>

#include "common/tensors/shard_table.h"
#include "parallel/groups/context.h"

namespace keel::bench {

class WeightSyncPeer {
 public:
  virtual ~WeightSyncPeer() = default;
  // Collective over the world. Tables of the shards that the constructor saw, with views.
  virtual void Run(const ShardTable& trainer, const ShardTable& rollout) = 0;
};

// Each tensor is gathered whole on rank 0 and broadcast to all ranks; each takes its slice, as with
// a rollout that loads from one trainer rank (OpenRLHF; verl's checkpoint engine over NCCL).
// Received in place where a part is a run of the tensor's memory; receives are posted before own
// parts are copied.
class GatherBroadcast final : public WeightSyncPeer {
 public:
  GatherBroadcast(parallel::ProcessGroup& world, const ShardTable& trainer);
  void Run(const ShardTable& trainer, const ShardTable& rollout) override;

 private:
  struct Part {
    int rank = 0;
    int shard = 0;  // of that rank's table
    Box box;
  };
  struct Whole {
    TensorInfo tensor;
    std::vector<Part> parts;  // cover it once
  };
  parallel::ProcessGroup& world_;
  std::vector<Whole> tensors_;  // by name
};

// Each shard is broadcast along the pipeline from the stage that has it, then gathered over tensor
// parallelism, so that every rank holds the whole tensor and takes its slice (verl with Megatron,
// colocated). Needs shards of one size over tensor parallelism, and no data parallelism.
class StageBroadcast final : public WeightSyncPeer {
 public:
  StageBroadcast(parallel::ParallelContext& context, const ShardTable& trainer);
  void Run(const ShardTable& trainer, const ShardTable& rollout) override;

 private:
  struct Whole {
    TensorInfo tensor;
    int stage = 0;           // that has it; the first of several
    std::vector<Box> boxes;  // by rank of tensor parallelism
    int shard = -1;          // of this rank's table, if it is of that stage
  };
  parallel::ParallelContext& context_;
  std::vector<Whole> tensors_;
};

}  // namespace keel::bench
