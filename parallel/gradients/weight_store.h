// WeightStore: the flat memory of a rank's weights, the parameters' views of it, and its table.
// What adapters stand beside lies in a memory of its own, which nothing but a load changes.
//
// Owns the memory behind Parameter::value. It is all that a model needs which only computes, as
// rollout, scoring and a reference do; training puts a GradBuffer beside it. Parameters must
// outlive it. Used from one thread at a time; Publish alone is collective.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "common/tensors/shard_table.h"
#include "parallel/gradients/bucket_layout.h"
#include "parallel/groups/process_group.h"
#include "parallel/groups/tensor_memory.h"
#include "parallel/layout.h"
#include "parallel/parameter.h"

namespace keel::parallel {

// Called on the training thread before weights or optimizer state at [begin, begin + bytes) are
// overwritten or released: a save in flight that still reads them is waited for there. May be
// empty.
using BeforeWrite = std::function<void(const void* begin, size_t bytes)>;

// The host memory that stands for a device tensor.
using HostTensor = std::function<at::Tensor(const at::Tensor&)>;

struct WeightStoreOptions {
  at::ScalarType dtype = at::kFloat;
  at::Device device = at::kCPU;
};

class WeightStore {
 public:
  // Zeros, one parameter after another. `parameters` are in the order of the forward. Sets each
  // parameter's value, which asks for no gradient. Those that are constant lie behind the others.
  WeightStore(std::vector<Parameter*> parameters, const WeightStoreOptions& options);
  // Where `layout` places TrainedOf(parameters): each rank of `dp`, which must outlive this, writes
  // a chunk of each bucket, and Publish hands it to the others.
  WeightStore(std::vector<Parameter*> parameters, const WeightStoreOptions& options,
              BucketLayout layout, ProcessGroup& dp);
  // Views of the memory of `other`, whose parameters must be the same by name and shape, in order.
  WeightStore(std::vector<Parameter*> parameters, const WeightStore& other);
  WeightStore(const WeightStore&) = delete;
  WeightStore& operator=(const WeightStore&) = delete;

  // Those that training may change, in their order; places of layout() are theirs.
  const std::vector<Parameter*>& parameters() const { return parameters_; }
  const BucketLayout& layout() const { return layout_; }
  // The base of a model with adapters; else none.
  const std::vector<Parameter*>& frozen() const { return frozen_; }
  // The whole of its storage: [layout().total] and then the constants' bits.
  const at::Tensor& flat() const { return own_.flat; }
  // The same of the base; undefined without adapters.
  const at::Tensor& base() const { return base_.flat; }
  // The canonical weights of the rank at `seat`: all, or those that are the run's own, as a
  // checkpoint has them, or those of the base. Copies that another stage owns are left out unless
  // `with_tied_copies` (loading fills them too). `host`: where the views lie, for a device tensor;
  // the tensor itself without.
  enum class Which { kAll, kOwn, kBase };
  ShardTable Table(const Seat& seat, bool with_tied_copies, const HostTensor& host = {},
                   Which which = Which::kAll) const;

  // Takes the values of a store of the same parameters, whose dtype and device may be others.
  void CopyFrom(const WeightStore& other);
  // The same of what the run has of its own: not of the base of adapters.
  void CopyOwnFrom(const WeightStore& other);

  // This rank's chunk of a bucket, a view.
  at::Tensor OwnChunk(const Bucket& bucket) const;
  // Gives all ranks what each has written into its own chunks. Collective over DP.
  void Publish();
  // Called before Publish overwrites a bucket's values, and by who else does.
  void set_before_write(BeforeWrite hook) { before_write_ = std::move(hook); }
  void WillWrite(const at::Tensor& values) const {
    if (before_write_) before_write_(values.const_data_ptr(), values.nbytes());
  }

  // Gives the memory back. Views stay, and are valid again, with other contents, after Allocate,
  // which brings it to the same place each time.
  void Release();
  void Allocate();
  // Takes over the memory of `fresh`, which is as large as flat() and left without any. The base
  // stays.
  void Adopt(const at::Tensor& fresh);

 private:
  // One memory: values of the model's dtype, and from `typed` on constants' bits.
  struct Region {
    at::Tensor flat;
    int64_t typed = 0;
    std::unique_ptr<TensorMemory> memory;  // once it has been released
    void CopyFrom(const Region& other);
  };
  void PlaceParameters(const WeightStoreOptions& options);

  std::vector<Parameter*> parameters_;
  std::vector<Parameter*> frozen_;     // first those of the model's dtype
  std::vector<Parameter*> constants_;  // of the run's own
  BucketLayout layout_;
  ProcessGroup* dp_ = nullptr;  // null where nothing is published
  Region own_, base_;
  BeforeWrite before_write_;
};

// Those of `parameters` that are trained.
std::vector<Parameter*> TrainedOf(const std::vector<Parameter*>& parameters);

// What a bucket layout needs to know of parameters, in their order.
std::vector<ParameterExtent> ExtentsOf(const std::vector<Parameter*>& parameters);

}  // namespace keel::parallel
