#include "parallel/gradients/weight_store.h"

#include <limits>

namespace keel::parallel {

std::vector<ParameterExtent> ExtentsOf(const std::vector<Parameter*>& parameters) {
  std::vector<ParameterExtent> extents;
  for (const Parameter* p : parameters) extents.push_back({p->rows(), p->row_size()});
  return extents;
}

WeightStore::WeightStore(std::vector<Parameter*> parameters, const WeightStoreOptions& options)
    : parameters_(std::move(parameters)),
      layout_(PlanBuckets(ExtentsOf(parameters_), 1, std::numeric_limits<int64_t>::max())),
      flat_(at::zeros({layout_.total},
                      at::TensorOptions().dtype(options.dtype).device(options.device))) {
  PlaceParameters();
}

WeightStore::WeightStore(std::vector<Parameter*> parameters, const WeightStoreOptions& options,
                         BucketLayout layout, ProcessGroup& dp)
    : parameters_(std::move(parameters)),
      layout_(std::move(layout)),
      dp_(&dp),
      flat_(at::zeros({layout_.total},
                      at::TensorOptions().dtype(options.dtype).device(options.device))) {
  PlaceParameters();
}

WeightStore::WeightStore(std::vector<Parameter*> parameters, const WeightStore& other)
    : parameters_(std::move(parameters)), layout_(other.layout_), flat_(other.flat_) {
  const auto& theirs = other.parameters_;
  TORCH_CHECK(parameters_.size() == theirs.size(), "WeightStore: ", parameters_.size(),
              " parameters cannot be views of ", theirs.size());
  for (size_t i = 0; i < parameters_.size(); ++i) {
    TORCH_CHECK(
        parameters_[i]->name == theirs[i]->name && parameters_[i]->shape == theirs[i]->shape,
        "WeightStore: ", parameters_[i]->name, " is not the other's ", theirs[i]->name);
    parameters_[i]->value = theirs[i]->value.detach();  // the memory may be away, so not anew
  }
}

void WeightStore::PlaceParameters() {
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = *parameters_[i];
    p.value = p.ViewIn(flat_, layout_.OffsetOf(i));
    p.gradient = at::empty({0}, flat_.options().dtype(at::kFloat));
  }
}

ShardTable WeightStore::Table(const Seat& seat, bool with_tied_copies,
                              const HostTensor& host) const {
  ShardTable table;
  const DType dtype = flat_.scalar_type() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
  for (const Parameter* p : parameters_) {
    if (p->replica && !with_tied_copies) continue;
    const at::Tensor value = host ? host(p->value) : p->value;
    for (const ParameterPiece& piece : p->pieces) {
      ThrowIfError(table.Add({piece.name, dtype, piece.shape}, piece.box, p->ViewOf(piece, value),
                             CopyNumber(*p, seat)));
    }
  }
  return table;
}

at::Tensor WeightStore::OwnChunk(const Bucket& bucket) const {
  return flat_.narrow(0, bucket.offset + (dp_ ? dp_->rank() : 0) * bucket.chunk, bucket.chunk);
}

void WeightStore::Publish() {
  if (dp_ == nullptr || dp_->size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const Bucket& bucket : layout_.buckets) {
    at::Tensor out = flat_.narrow(0, bucket.offset, dp_->size() * bucket.chunk);
    // The input is a part of the output; gloo and NCCL want that in place or apart, so keep it
    // apart.
    const at::Tensor mine = OwnChunk(bucket).clone();
    WillWrite(out);
    dp_->AllGather(out, mine);
  }
}

void WeightStore::Release() {
  if (memory_ == nullptr) memory_ = std::make_unique<TensorMemory>(flat_);
  memory_->Release();
}

void WeightStore::Allocate() {
  if (memory_ != nullptr) memory_->Restore();
}

void WeightStore::Adopt(const at::Tensor& fresh) {
  TORCH_CHECK(fresh.numel() == flat_.numel() && fresh.scalar_type() == flat_.scalar_type(),
              "WeightStore: ", fresh.numel(), " elements cannot become ", flat_.numel());
  c10::StorageImpl* const memory = StorageOf(flat_);
  memory->set_data_ptr(StorageOf(fresh)->set_data_ptr(at::DataPtr()));
  memory->set_nbytes(StorageOf(fresh)->nbytes());
  StorageOf(fresh)->set_nbytes(0);
  memory_.reset();
}

}  // namespace keel::parallel
