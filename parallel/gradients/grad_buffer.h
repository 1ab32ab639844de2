// GradBuffer: flat fp32 gradients of a WeightStore's parameters, their reduction, and which slice
// of the weights this rank updates (ZeRO-1).
//
// Owns the memory behind Parameter::gradient; the weights are the store's. Gradients of all
// micro-batches are summed in place; on the last one, buckets are reduce-scattered over DP as soon
// as their parameters are done, while the backward goes on. Used from the training thread. Store
// and context, whose groups it sums over, must outlive it.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <memory>
#include <vector>

#include "parallel/gradients/bucket_layout.h"
#include "parallel/gradients/weight_store.h"
#include "parallel/groups/context.h"
#include "parallel/groups/process_group.h"
#include "parallel/parameter.h"

namespace keel::parallel {

// Rows of a parameter that this rank updates, and where they lie in the owned arrays.
struct OwnedSlice {
  int parameter = 0;
  int64_t row_begin = 0;
  int64_t row_end = 0;
  int64_t offset = 0;  // elements, into gradients(), and into the optimizer's state
};

class GradBuffer {
 public:
  // A store for weights that a GradBuffer trains. `parameters` in the order in which the forward
  // uses them. `bucket_bytes`: of fp32 gradients; smaller buckets overlap more and cost more calls.
  // Late parameters have a bucket of their own, the last: tied ones, those that are summed over
  // other axes than DP, too, and all that several TP ranks hold. Other parameters may be of other
  // sizes on other TP ranks; these lie alike on all of them, so that every step of the way gives
  // all copies the same bits, in whichever order a group sums a place of memory.
  static WeightStore MakeStore(std::vector<Parameter*> parameters, ParallelContext& context,
                               const WeightStoreOptions& options,
                               int64_t bucket_bytes = int64_t{32} << 20);
  // `weights` is of MakeStore, with this context. Sets the parameters' gradients, and has their
  // values ask for them. Late parameters are reduced in FinishReduction only.
  GradBuffer(WeightStore& weights, ParallelContext& context);

  void ZeroGradients();
  // Call before the backward of the step's last micro-batch: from now on Ready() starts reductions.
  void BeginLastMicrobatch();
  // The backward of the last micro-batch is done with this parameter. Starts its bucket's
  // reduce-scatter when it was the last of the bucket. Collective over DP, in bucket order.
  void Ready(const Parameter& parameter);
  // Sums late gradients over their other axes and over tied stages, reduces what is left, and waits
  // for all. Collective over DP, those axes and the tied group.
  void FinishReduction();

  // This rank's slices. Their gradients, summed over DP, stand in owned_gradients() (valid after
  // FinishReduction until the next backward), their values in owned_values().
  const std::vector<OwnedSlice>& owned() const { return owned_; }
  int64_t owned_elements() const { return owned_elements_; }
  at::Tensor owned_gradients() const {
    return owned_gradients_;
  }  // [owned_elements] fp32, padding 0
  // One piece per bucket: `owned` elements [offset, offset + values.numel()) are `values`, views of
  // the store in the model's dtype. Whoever has written them calls weights().Publish().
  struct OwnedValues {
    int64_t offset = 0;
    at::Tensor values;
  };
  const std::vector<OwnedValues>& owned_values() const { return owned_values_; }

  WeightStore& weights() const { return weights_; }
  const std::vector<Parameter*>& parameters() const { return weights_.parameters(); }
  // The flat storages themselves, for code that moves them (see trainer/engine/residency.h).
  std::vector<at::Tensor> flat() const {
    if (owned_is_view_) return {gradients_};
    return {gradients_, owned_gradients_};
  }

 private:
  void PlaceUnread();
  void FindOwned();
  void FindLateSums();
  void FindShared();
  void StartReduction(size_t bucket);
  const std::vector<Bucket>& buckets() const { return weights_.layout().buckets; }

  WeightStore& weights_;
  ProcessGroup& dp_;
  ProcessGroup* tied_;  // null where no embedding is tied over stages
  ParallelContext& context_;
  at::Tensor gradients_;  // [total] fp32
  at::Tensor unread_;     // where gradients go of which nothing learns
  // Runs of gradients_ that are summed over another axis than DP, each in one call.
  struct LateSum {
    ProcessGroup* group = nullptr;
    at::Tensor run;
  };
  std::vector<LateSum> late_sums_;
  at::Tensor shared_;  // the run of gradients_ that is summed over its TP holders
  TpHolders holders_;
  at::Tensor owned_gradients_;
  bool owned_is_view_ = false;  // dp == 1: the owned gradients are the buffer itself
  std::vector<OwnedSlice> owned_;
  std::vector<OwnedValues> owned_values_;
  int64_t owned_elements_ = 0;

  bool last_microbatch_ = false;
  std::vector<int> waiting_;  // per bucket, parameters not yet ready
  size_t next_bucket_ = 0;    // reductions start in this order on every rank
  std::vector<std::unique_ptr<Work>> works_;
  std::vector<bool> started_;
};

}  // namespace keel::parallel
