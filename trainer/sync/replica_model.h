// ReplicaModel: the model that one rollout replica generates with: its layers split over the
// replica's ranks, memory for its weights, and the engine.
//
// Made alike on each of the replica's ranks. Its weights are nobody's until whoever made it fills
// Table(), and BaseTable(), and tells the engine their version. Used from one thread.
#pragma once

#include <ATen/ATen.h>

#include <memory>

#include "common/tensors/shard_table.h"
#include "model/decoder.h"
#include "parallel/gradients/weight_store.h"
#include "parallel/groups/process_group.h"
#include "parallel/layout.h"
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

  // The weights on this rank that training changes, where the engine reads them: all, or the
  // adapters alone.
  ShardTable Table() const;
  // What adapters stand beside, which comes once; empty without any.
  ShardTable BaseTable() const;
  bool has_adapters() const { return !weights_->frozen().empty(); }
  // Memory for the weights of Table() beside them, their table there, and their taking its place.
  at::Tensor MakeStage() const;
  ShardTable Table(const at::Tensor& stage) const;
  void TakeStage(const at::Tensor& stage);

 private:
  using Which = parallel::WeightStore::Which;
  parallel::Seat SeatHere() const;

  std::unique_ptr<parallel::ProcessGroup> group_;
  std::unique_ptr<model::Decoder> decoder_;
  std::unique_ptr<parallel::WeightStore> weights_;
  std::unique_ptr<rollout::Engine> engine_;
};

}  // namespace keel::trainer
