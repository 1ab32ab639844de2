#include "trainer/sync/replica_model.h"

#include <utility>

namespace keel::trainer {

ReplicaModel::ReplicaModel(std::unique_ptr<parallel::ProcessGroup> group,
                           const model::HfConfig& config, const model::DecoderOptions& decoder)
    : group_(std::move(group)) {
  decoder_ = std::make_unique<model::Decoder>(config, parallel::TensorParallel{group_.get(), false},
                                              decoder);
  weights_ = std::make_unique<parallel::WeightStore>(
      decoder_->parameters(), parallel::WeightStoreOptions{decoder.dtype, decoder.device});
}

void ReplicaModel::MakeEngine(const rollout::EngineOptions& options) {
  engine_ = std::make_unique<rollout::Engine>(*decoder_, *group_, options);
  engine_->Invalidate("it has no weights yet");
}

void ReplicaModel::Alias(const parallel::WeightStore& other) {
  weights_ = std::make_unique<parallel::WeightStore>(decoder_->parameters(), other);
}

parallel::Seat ReplicaModel::SeatHere() const {
  return {parallel::Layout::OfReplica(group_->size()), group_->rank()};
}

ShardTable ReplicaModel::Table() const {
  return weights_->Table(SeatHere(), true, {}, Which::kOwn);
}

ShardTable ReplicaModel::BaseTable() const {
  return weights_->Table(SeatHere(), true, {}, Which::kBase);
}

at::Tensor ReplicaModel::MakeStage() const { return at::zeros_like(weights_->flat()); }

ShardTable ReplicaModel::Table(const at::Tensor& stage) const {
  return weights_->Table(
      SeatHere(), true,
      [&](const at::Tensor& tensor) {
        return stage.view(tensor.scalar_type())
            .as_strided(tensor.sizes(), tensor.strides(), tensor.storage_offset());
      },
      Which::kOwn);
}

void ReplicaModel::TakeStage(const at::Tensor& stage) { weights_->Adopt(stage); }

}  // namespace keel::trainer
