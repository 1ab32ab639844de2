// GradBuffer: flat storage of parameters and fp32 gradients, their data-parallel reduction, and the
// slice of each that this rank owns (ZeRO-1).
//
// Owns the memory behind Parameter::value and Parameter::gradient. Gradients of all micro-batches
// are summed in place; on the last one, buckets are reduce-scattered over DP as soon as their
// parameters are done, while the backward goes on. Used from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "parallel/bucket_layout.h"
#include "parallel/parameter.h"
#include "parallel/process_group.h"

namespace keel::parallel {

// Called on the training thread before weights or optimizer state at [begin, begin + bytes) are
// overwritten or released: a save in flight that still reads them is waited for there. May be
// empty.
using BeforeWrite = std::function<void(const void* begin, size_t bytes)>;

struct GradBufferOptions {
  at::ScalarType dtype = at::kFloat;  // of the parameters
  at::Device device = at::kCPU;
  int64_t bucket_bytes = int64_t{32}
                         << 20;  // of fp32 gradients; smaller overlaps more, costs more calls
  bool inference = false;        // storage of the values alone: no gradients, nothing owned
};

// Rows of a parameter that this rank updates, and where they lie in the owned arrays.
struct OwnedSlice {
  int parameter = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t offset = 0;  // elements, into gradients(), and into the optimizer's state
};

class GradBuffer {
 public:
  // `parameters` in the order in which the forward uses them; sets their value and gradient. Late
  // parameters (tied, or summed over TP) are reduced in FinishReduction only. The groups must
  // outlive this; `tied` may be null where no embedding is tied over stages.
  GradBuffer(std::vector<Parameter*> parameters, ProcessGroup& dp, ProcessGroup& tp,
             ProcessGroup* tied, const GradBufferOptions& options);

  void ZeroGradients();
  // Call before the backward of the step's last micro-batch: from now on Ready() starts reductions.
  void BeginLastMicrobatch();
  // The backward of the last micro-batch is done with this parameter. Starts its bucket's
  // reduce-scatter when it was the last of the bucket. Collective over DP, in bucket order.
  void Ready(const Parameter& parameter);
  // Sums late gradients over TP and over tied stages, reduces what is left, and waits for all.
  // Collective over DP, TP and the tied group.
  void FinishReduction();

  // This rank's slices. Their gradients, summed over DP, stand in owned_gradients() (valid after
  // FinishReduction until the next backward), their values in owned_values().
  const std::vector<OwnedSlice>& owned() const { return owned_; }
  int64_t owned_elements() const { return owned_elements_; }
  at::Tensor owned_gradients() const {
    return owned_gradients_;
  }  // [owned_elements] fp32, padding 0
  // One piece per bucket: `owned` elements [offset, offset + values.numel()) are `values`, views of
  // the parameter buffer in the model's dtype.
  struct OwnedValues {
    int64_t offset = 0;
    at::Tensor values;
  };
  const std::vector<OwnedValues>& owned_values() const { return owned_values_; }
  // Publishes updated owned values to all DP ranks. Collective over DP.
  void AllGatherValues();
  // Called before AllGatherValues overwrites a bucket's values.
  void set_before_write(BeforeWrite hook) { before_write_ = std::move(hook); }

  const std::vector<Parameter*>& parameters() const { return parameters_; }
  const BucketLayout& layout() const { return layout_; }
  // The flat storages themselves, for code that moves them (see trainer/engine/residency.h).
  const at::Tensor& flat_values() const { return values_; }
  std::vector<at::Tensor> flat_gradients() const {
    if (!gradients_.defined()) return {};
    if (owned_is_view_) return {gradients_};
    return {gradients_, owned_gradients_};
  }

 private:
  void StartReduction(int bucket);

  std::vector<Parameter*> parameters_;  // in buffer order: the reverse of the forward's
  ProcessGroup& dp_;
  ProcessGroup& tp_;
  ProcessGroup* tied_;
  BucketLayout layout_;
  at::Tensor values_;      // [total]
  at::Tensor gradients_;   // [total] fp32
  at::Tensor tp_sum_run_;  // of gradients_: late parameters summed over TP; undefined when none
  at::Tensor owned_gradients_;
  bool owned_is_view_ = false;  // dp == 1: the owned gradients are the buffer itself
  std::vector<OwnedSlice> owned_;
  std::vector<OwnedValues> owned_values_;
  int64_t owned_elements_ = 0;
  BeforeWrite before_write_;

  bool last_microbatch_ = false;
  std::vector<int> waiting_;  // per bucket, parameters not yet ready
  int next_bucket_ = 0;       // reductions start in this order on every rank
  std::vector<std::unique_ptr<Work>> works_;
  std::vector<bool> started_;
};

}  // namespace keel::parallel
