// ReplicaModel: the model that one rollout replica generates with: its layers split over the
// replica's ranks, memory for its weights, and the engine.
//
// Made alike on each of the replica's ranks. Its weights are nobody's until whoever made it fills
// Table() and tells the engine their version. Used from one thread.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "common/tensors/shard_table.h"
#include "model/decoder.h"
#include "parallel/gradients/weight_store.h"
#include "parallel/groups/process_group.h"
#include "rollout/engine.h"

namespace keel::trainer {

class ReplicaModel {
 public:
  // `group`: the replica's ranks.
  ReplicaModel(std::unique_ptr<parallel::ProcessGroup> group, const model::HfConfig& config,
               const model::DecoderOptions& decoder);

  parallel::ProcessGroup& group() { return *group_; }
  parallel::WeightStore& weights() { return *weights_; }
  // Uses the memory of another store from here on, whose parameters are the same.
  void Alias(const parallel::WeightStore& other);
  // Once the weights lie where they stay: on CUDA its cache is a share of what is free then.
  void MakeEngine(const rollout::EngineOptions& options);
  rollout::Engine& engine() { return *engine_; }

  // The weights on this rank, where the engine reads them.
  ShardTable Table() const;
  // The same if they lay in `flat`, which is as large as the store's.
  ShardTable Table(const at::Tensor& flat) const;

 private:
  std::unique_ptr<parallel::ProcessGroup> group_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::WeightStore> weights_;
  std::unique_ptr<rollout::Engine> engine_;
};

}  // namespace keel::trainer
