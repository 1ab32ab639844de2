#include "trainer/sync/replica_model.h"

#include <utility>

#include "parallel/layout.h"

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

ShardTable ReplicaModel::Table() const {
  return weights_->Table({parallel::Layout::OfReplica(group_->size()), group_->rank()}, true);
}

ShardTable ReplicaModel::Table(const at::Tensor& flat) const {
  return weights_->Table({parallel::Layout::OfReplica(group_->size()), group_->rank()}, true,
                         [&](const at::Tensor& tensor) {
                           return flat.view(tensor.scalar_type())
                               .as_strided(tensor.sizes(), tensor.strides(),
                                           tensor.storage_offset());
                         });
}

}  // namespace keel::trainer
