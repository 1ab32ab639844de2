// MoeFeedForward: the feed-forward of a block with experts, in training and in generation.
//
// Both run the same code (see moe.cc): a router's product and choice, the tokens' rows sorted by
// expert, per expert one product with [gate | up], the gated unit and one product with down, and
// the rows added up by token. Only what multiplies differs, as it does for dense layers: training's
// products are fast, generation's give a row the same bits whatever stands beside it.
#pragma once

#include <ATen/ATen.h>

#include "model/config/layer_spec.h"
#include "model/layers/gated_feed_forward.h"
#include "model/ops/router_load.h"
#include "parallel/parameter.h"
#include "parallel/tensor/tensor_parallel_layers.h"

namespace keel::model {

struct MoeFeedForward {
  // [experts, hidden], whole on every TP rank. Each rank's gradient is of its parts of the experts,
  // so that it is summed over TP.
  parallel::Parameter* router = nullptr;
  // Rows [2 F e, 2 F (e + 1)): gate and then up of expert e, F being this rank's part of the width.
  parallel::Parameter* gate_up = nullptr;  // [experts * 2 F, hidden]
  // Rows [hidden e, hidden (e + 1)): of expert e.
  parallel::Parameter* down = nullptr;  // [experts * hidden, F]
  // With ExpertKind::kClamped gate_up is [experts * hidden, 2 F], columns of gate and up
  // alternating, down [experts * F, hidden], and there are biases: the router's, [experts], with a
  // gradient as its weight's; [experts * 2 F]; and [experts * hidden], whole on every rank, which
  // the first one adds.
  parallel::Parameter* router_bias = nullptr;
  parallel::Parameter* gate_up_bias = nullptr;
  parallel::Parameter* down_bias = nullptr;
  bool adds_down_bias = false;  // with kClamped: this rank does
  // With a shared expert: its part of this rank, and, where there is one, what its result is
  // weighed by, [1, hidden], whole on every rank with a gradient as the router's.
  GatedFeedForward shared;
  parallel::Parameter* shared_gate = nullptr;
  parallel::Parameter* choice_bias = nullptr;  // a constant [experts], whole on every rank
  MoeSpec spec;
  Activation activation = Activation::kSilu;

  // x [T, hidden] (or [T / n, hidden] with sequence parallelism) -> the same shape; `load` takes
  // the routing of tokens that `counted` counts. Weight gradients are added to Parameter::gradient
  // by the backward. Collective over TP.
  at::Tensor Forward(const parallel::TensorParallel& tp, const at::Tensor& x,
                     const at::Tensor& counted, RouterLoad& load) const;
  // For generation, without gradients: out [T, hidden] = this rank's part of the sum over TP. Not
  // collective.
  void Into(const at::Tensor& x, at::Tensor& out, parallel::Arithmetic arithmetic) const;
  // Whether the device alone knows which rows an expert has; else the host waits to hear it.
  bool SortsInPlace() const;
};

}  // namespace keel::model
