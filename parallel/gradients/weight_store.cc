#include "parallel/gradients/weight_store.h"

#include <algorithm>
#include <iterator>
#include <limits>
#include <span>

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
  std::vector<Parameter*> frozen = Those(parameters, [](const Parameter& p) { return p.frozen; });
  std::stable_partition(frozen.begin(), frozen.end(),
                        [](const Parameter* p) { return !p->constant; });
  return frozen;
}

std::vector<Parameter*> ConstantsOf(const std::vector<Parameter*>& parameters) {
  return Those(parameters, [](const Parameter& p) { return p.constant && !p.frozen; });
}

int64_t ElementsOf(std::span<Parameter* const> parameters) {
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
      own_{other.own_.flat, other.own_.typed, nullptr},
      base_{other.base_.flat, other.base_.typed, nullptr} {
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

void WeightStore::PlaceParameters(const WeightStoreOptions& options) {
  const auto zeros = at::TensorOptions().dtype(options.dtype).device(options.device);
  // In the model's dtype constants' bits are several elements each, and begin at a multiple of
  // them; buckets end at one.
  constexpr int64_t kAlignment = 64;  // whatever the dtype, as stores of two are compared
  const auto each = static_cast<int64_t>(sizeof(float) / at::elementSize(options.dtype));
  const at::Tensor none = at::empty({0}, zeros.dtype(at::kFloat));
  const auto place = [&none](Parameter& p, const at::Tensor& in, int64_t* offset) {
    p.value = p.ViewIn(in, *offset);
    p.gradient = none;
    *offset += p.rows() * p.row_size();
  };
  const auto place_constants = [&](std::span<Parameter* const> constants, const Region& region) {
    if (constants.empty()) return;
    const int64_t size = region.flat.numel() - region.typed;
    const at::Tensor bits = region.flat.narrow(0, region.typed, size).view(at::kFloat);
    int64_t offset = 0;
    for (Parameter* p : constants) place(*p, bits, &offset);
  };
  // 1. What is the run's own.
  own_.typed = layout_.total;
  own_.flat = at::zeros({own_.typed + ElementsOf(constants_) * each}, zeros);
  for (size_t i = 0; i < parameters_.size(); ++i) {
    int64_t offset = layout_.OffsetOf(i);
    place(*parameters_[i], own_.flat, &offset);
  }
  place_constants(constants_, own_);
  // 2. The base.
  if (frozen_.empty()) return;
  const auto first =
      std::find_if(frozen_.begin(), frozen_.end(), [](const Parameter* p) { return p->constant; });
  const auto typed = std::span(frozen_).first(static_cast<size_t>(first - frozen_.begin()));
  const auto constants = std::span(frozen_).subspan(typed.size());
  base_.typed = (ElementsOf(typed) + kAlignment - 1) / kAlignment * kAlignment;
  base_.flat = at::zeros({base_.typed + ElementsOf(constants) * each}, zeros);
  int64_t offset = 0;
  for (Parameter* p : typed) place(*p, base_.flat, &offset);
  place_constants(constants, base_);
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

void WeightStore::Region::CopyFrom(const Region& other) {
  if (!flat.defined()) return;
  const at::NoGradGuard no_grad;
  const auto constants = [](const Region& region) {
    return region.flat.narrow(0, region.typed, region.flat.numel() - region.typed).view(at::kFloat);
  };
  TORCH_CHECK(other.typed == typed, "WeightStore: ", other.typed, " elements cannot become ",
              typed);
  flat.narrow(0, 0, typed).copy_(other.flat.narrow(0, 0, typed));
  if (flat.numel() > typed) constants(*this).copy_(constants(other));
}

void WeightStore::CopyFrom(const WeightStore& other) {
  own_.CopyFrom(other.own_);
  base_.CopyFrom(other.base_);
}

void WeightStore::CopyOwnFrom(const WeightStore& other) { own_.CopyFrom(other.own_); }

at::Tensor WeightStore::OwnChunk(const Bucket& bucket) const {
  return own_.flat.narrow(0, bucket.offset + (dp_ ? dp_->rank() : 0) * bucket.chunk, bucket.chunk);
}

void WeightStore::Publish() {
  if (dp_ == nullptr || dp_->size() == 1) return;
  const at::NoGradGuard no_grad;
  for (const Bucket& bucket : layout_.buckets) {
    at::Tensor out = own_.flat.narrow(0, bucket.offset, dp_->size() * bucket.chunk);
    // The input is a part of the output; gloo and NCCL want that in place or apart, so keep it
    // apart.
    const at::Tensor mine = OwnChunk(bucket).clone();
    WillWrite(out);
    dp_->AllGather(out, mine);
  }
}

void WeightStore::Release() {
  for (Region* region : {&own_, &base_}) {
    if (!region->flat.defined()) continue;
    if (region->memory == nullptr) region->memory = std::make_unique<TensorMemory>(region->flat);
    region->memory->Release();
  }
}

void WeightStore::Allocate() {
  for (Region* region : {&own_, &base_})
    if (region->memory != nullptr) region->memory->Restore();
}

void WeightStore::Adopt(const at::Tensor& fresh) {
  at::Tensor& flat = own_.flat;
  TORCH_CHECK(fresh.numel() == flat.numel() && fresh.scalar_type() == flat.scalar_type(),
              "WeightStore: ", fresh.numel(), " elements cannot become ", flat.numel());
  c10::StorageImpl* const memory = StorageOf(flat);
  memory->set_data_ptr(StorageOf(fresh)->set_data_ptr(at::DataPtr()));
  memory->set_nbytes(StorageOf(fresh)->nbytes());
  StorageOf(fresh)->set_nbytes(0);
  own_.memory.reset();
}

}  // namespace keel::parallel
