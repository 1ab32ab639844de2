// RouterLoad: how a micro-batch's tokens spread over the experts, summed over the layers that have
// experts, and the load-balancing loss that follows from it.
//
// The loss is that of transformers' load_balancing_loss_func (Switch Transformer, Fedus et al.
// 2021, equations 4 to 6), which mixes the layers: with C_e the tokens that chose expert e, P_e the
// probabilities that the routers gave it, and N the tokens, each summed over the layers,
//
//     experts * sum over e of (C_e / N) * (P_e / N)
//
// Of a router with a bias for the choice (MiniMax-M2) C counts the experts of the highest
// probabilities, as transformers has it, which chooses them anew for this loss.
//
// It is taken of each micro-batch by itself, over its tokens, whatever the layout:
//   - along the pipeline the sums are carried from stage to stage behind the activations, and the
//     gradients of P come back behind theirs, so that the last stage has all layers';
//   - along TP every rank has all tokens and the same sums; the gradient of P is taken by the first
//     rank alone, since a router's gradients are summed over TP;
//   - along DP, and over the micro-batches of a step, it is a mean, each micro-batch weighing as
//     many as the targets that it has of the step's. So it depends on which sequences stand in one
//     micro-batch, as transformers' depends on the batch, but not on the rank that has them.
// Tokens of sequences of which nothing is learnt, padding among them, do not count.
#pragma once

#include <ATen/ATen.h>

#include <utility>

#include "model/config/moe_spec.h"
#include "model/ops/ops.h"
#include "model/ops/router.h"

namespace keel::model {

// [2 experts + 2] fp32: C, P, N, and the largest share of its assignments that any layer gives to
// one expert. Differentiable by P. Undefined in a model without experts.
struct RouterLoad {
  at::Tensor sums;

  static RouterLoad Zero(const MoeSpec& spec, at::Device device);
  // With a layer's routing. `counted` [T] fp32 is 1 for tokens that count, 0 for others; undefined:
  // all count. Without `differentiable` P is a number alone.
  RouterLoad With(const Routing& routing, const at::Tensor& counted, bool differentiable) const;
  // A scalar each.
  at::Tensor BalanceLoss() const;
  at::Tensor BusiestShare() const;
};

// [T] fp32, 1 for tokens of sequences with some token that is `learnt` [T] bool; undefined where
// that is.
at::Tensor CountedTokens(const at::Tensor& learnt, const Packing& packing);

// The rows of `columns` that a load takes behind a stage's activations; 0 without experts.
int64_t CarriedRows(const MoeSpec& spec, int64_t columns, at::ScalarType dtype);
// x [T, n] and the load's bits behind it, [T + CarriedRows, n]. Differentiable.
at::Tensor AppendLoad(const at::Tensor& x, const RouterLoad& load);
// What AppendLoad joined. `joined` may be used once in a graph: gradients of bits do not add up.
std::pair<at::Tensor, RouterLoad> SplitLoad(const at::Tensor& joined, const MoeSpec& spec);

}  // namespace keel::model
