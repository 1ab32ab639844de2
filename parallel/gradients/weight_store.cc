#include "parallel/gradients/weight_store.h"

#include <algorithm>
#include <iterator>
#include <limits>

namespace keel::parallel {

namespace {

template <typename F>
std::vector<Parameter*> Those(const std::vector<Parameter*>& parameters, F which) {
  std::vector<Parameter*> some;
  std::copy_if(parameters.begin(), parameters.end(), std::back_inserter(some),
               [&](const Parameter* p) { return which(*p); });
  return some;
}

std::vector<Parameter*> FrozenOf(const std::vector<Parameter*>& parameters) {
  return Those(parameters, [](const Parameter& p) { return p.frozen && !p.constant; });
}

std::vector<Parameter*> ConstantsOf(const std::vector<Parameter*>& parameters) {
  return Those(parameters, [](const Parameter& p) { return p.constant; });
}

int64_t ElementsOf(const std::vector<Parameter*>& parameters) {
  int64_t elements = 0;
  for (const Parameter* p : parameters) elements += p->rows() * p->row_size();
  return elements;
}

DType DTypeOf(const at::Tensor& values) {
  return values.scalar_type() == at::kBFloat16 ? DType::kBF16 : DType::kF32;
}

}  // namespace

std::vector<Parameter*> TrainedOf(const std::vector<Parameter*>& parameters) {
  return Those(parameters, [](const Parameter& p) { return p.trained(); });
}

std::vector<ParameterExtent> ExtentsOf(const std::vector<Parameter*>& parameters) {
  std::vector<ParameterExtent> extents;
  for (const Parameter* p : parameters) extents.push_back({p->rows(), p->row_size()});
  return extents;
}

WeightStore::WeightStore(std::vector<Parameter*> parameters, const WeightStoreOptions& options)
    : parameters_(TrainedOf(parameters)),
      frozen_(FrozenOf(parameters)),
      constants_(ConstantsOf(parameters)),
      layout_(PlanBuckets(ExtentsOf(parameters_), 1, std::numeric_limits<int64_t>::max())) {
  PlaceParameters(options);
}

WeightStore::WeightStore(std::vector<Parameter*> parameters, const WeightStoreOptions& options,
                         BucketLayout layout, ProcessGroup& dp)
    : parameters_(TrainedOf(parameters)),
      frozen_(FrozenOf(parameters)),
      constants_(ConstantsOf(parameters)),
      layout_(std::move(layout)),
      dp_(&dp) {
  PlaceParameters(options);
}

WeightStore::WeightStore(std::vector<Parameter*> parameters, const WeightStore& other)
    : parameters_(TrainedOf(parameters)),
      frozen_(FrozenOf(parameters)),
      constants_(ConstantsOf(parameters)),
      layout_(other.layout_),
      flat_(other.flat_) {
  const auto view = [](const std::vector<Parameter*>& own, const std::vector<Parameter*>& theirs) {
    TORCH_CHECK(own.size() == theirs.size(), "WeightStore: ", own.size(),
                " parameters cannot be views of ", theirs.size());
    for (size_t i = 0; i < own.size(); ++i) {
      TORCH_CHECK(own[i]->name == theirs[i]->name && own[i]->shape == theirs[i]->shape,
                  "WeightStore: ", own[i]->name, " is not the other's ", theirs[i]->name);
      own[i]->value = theirs[i]->value.detach();  // the memory may be away, so not anew
    }
  };
  view(parameters_, other.parameters_);
  view(frozen_, other.frozen_);
  view(constants_, other.constants_);
}

// At a multiple of what a constant's bits need.
int64_t WeightStore::ConstantsBegin() const {
  constexpr int64_t kAlignment = 64;
  return layout_.total + (ElementsOf(frozen_) + kAlignment - 1) / kAlignment * kAlignment;
}

void WeightStore::PlaceParameters(const WeightStoreOptions& options) {
  // Of the model's dtype, in which the constants' bits are several elements each. Buckets end at a
  // multiple of their alignment.
  const auto each = static_cast<int64_t>(sizeof(float) / at::elementSize(options.dtype));
  const int64_t constants = ElementsOf(constants_) * each;
  flat_ = at::zeros({ConstantsBegin() + constants},
                    at::TensorOptions().dtype(options.dtype).device(options.device));
  const at::Tensor none = at::empty({0}, flat_.options().dtype(at::kFloat));
  for (size_t i = 0; i < parameters_.size(); ++i) {
    Parameter& p = *parameters_[i];
    p.value = p.ViewIn(flat_, layout_.OffsetOf(i));
    p.gradient = none;
  }
  const auto place = [&none](const std::vector<Parameter*>& some, const at::Tensor& in,
                             int64_t offset) {
    for (Parameter* p : some) {
      p->value = p->ViewIn(in, offset);
      p->gradient = none;
      offset += p->rows() * p->row_size();
    }
  };
  place(frozen_, flat_, layout_.total);
  if (constants_.empty()) return;
  place(constants_, flat_.narrow(0, ConstantsBegin(), constants).view(at::kFloat), 0);
}

ShardTable WeightStore::Table(const Seat& seat, bool with_tied_copies, const HostTensor& host,
                              Which which) const {
  ShardTable table;
  const auto add = [&](const Parameter& p) {
    if (which != Which::kAll && p.frozen != (which == Which::kBase)) return;
    if (p.replica && !with_tied_copies) return;
    const at::Tensor value = host ? host(p.value) : p.value;
    for (const ParameterPiece& piece : p.pieces) {
      ThrowIfError(table.Add({piece.name, DTypeOf(value), piece.shape}, piece.box,
                             p.ViewOf(piece, value), CopyNumber(p, seat)));
    }
  };
  for (const auto* some : {&parameters_, &frozen_, &constants_})
    for (const Parameter* p : *some) add(*p);
  return table;
}

void WeightStore::CopyFrom(const WeightStore& other) {
  const at::NoGradGuard no_grad;
  const int64_t begin = ConstantsBegin();
  TORCH_CHECK(other.layout_.total == layout_.total && other.ConstantsBegin() == begin &&
                  other.constants_.size() == constants_.size(),
              "WeightStore: ", other.ConstantsBegin(), " elements cannot become ", begin);
  flat_.narrow(0, 0, begin).copy_(other.flat_.narrow(0, 0, begin));
  if (constants_.empty()) return;
  const auto behind = [begin](const WeightStore& store) {
    return store.flat_.narrow(0, begin, store.flat_.numel() - begin).view(at::kFloat);
  };
  behind(*this).copy_(behind(other));
}

void WeightStore::CopyOwnFrom(const WeightStore& other) {
  if (frozen_.empty()) return CopyFrom(other);
  const at::NoGradGuard no_grad;
  TORCH_CHECK(other.layout_.total == layout_.total, "WeightStore: ", other.layout_.total,
              " elements cannot become ", layout_.total);
  flat_.narrow(0, 0, layout_.total).copy_(other.flat_.narrow(0, 0, layout_.total));
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
