// DistributedAdamW: AdamW on the slices of the flat buffer that this rank owns (ZeRO-1).
//
// fp32 moments, and fp32 masters when the weights are bf16 (with fp32 weights the weight is the
// master). Owned by the trainer; used from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <utility>
#include <vector>

#include "common/tensors/shard_table.h"
#include "parallel/gradients/grad_buffer.h"

namespace keel::trainer {

struct AdamWOptions {
  double beta1 = 0.9;
  double beta2 = 0.999;
  double eps = 1e-8;
  double weight_decay = 0.01;  // decoupled; on parameters of two dims only
};

class DistributedAdamW {
 public:
  // `buffer` must outlive this. Masters are copied from the weights: call after they are set, or
  // load, or call ResetMasters().
  DistributedAdamW(parallel::GradBuffer& buffer, const AdamWOptions& options);

  // Sum of squares of this rank's part of the gradient; elements that several ranks hold are
  // counted by one of them. Sum over all ranks for the global norm. [1] fp64, where the gradients
  // are; no host waits for it.
  at::Tensor LocalSquaredNorm(const parallel::Seat& seat) const;
  // One update of the owned slices with gradients scaled by `gradient_scale`, then publishes the
  // new weights over DP. `t` counts updates from 1. Collective over DP.
  void Step(double lr, double gradient_scale, int64_t t);
  void ResetMasters();
  bool has_masters() const { return masters_.defined(); }
  // The state's flat tensors: masters, where there are any, and the moments.
  std::vector<at::Tensor> flat_state() const;
  // Called for each array of an owned slice before it is overwritten.
  void set_before_write(parallel::BeforeWrite hook) { before_write_ = std::move(hook); }

  // optimizer.{master,exp_avg,exp_avg_sq}.<canonical name>, boxes of the owned rows, slice by slice
  // in the order of the update. Copies that another stage owns are left out unless
  // `with_tied_copies`. `host` gives the host memory that stands for a
  // device tensor.
  ShardTable Table(const parallel::Seat& seat, bool with_tied_copies,
                   const parallel::HostTensor& host = {}) const;

 private:
  void Announce(const at::Tensor& tensor) const {
    if (before_write_) before_write_(tensor.const_data_ptr(), tensor.nbytes());
  }

  parallel::GradBuffer& buffer_;
  AdamWOptions options_;
  at::Tensor masters_;     // [owned] fp32; undefined when the weights are fp32
  at::Tensor exp_avg_;     // [owned] fp32
  at::Tensor exp_avg_sq_;  // [owned] fp32
  parallel::BeforeWrite before_write_;
};

}  // namespace keel::trainer
