// The regions of tensor parallelism: communication in the forward, its transpose in the backward
// (Megatron-LM, Shoeybi et al. 2019; sequence parallelism, Korthikanti et al. 2022).
//
// The forward's sums with `fixed_order` see SumOverRanks. Each is collective over `group` in the
// forward, and again in the backward when gradients flow. With a group of one each is the identity.
// The group must outlive the graph.
#pragma once

#include <ATen/ATen.h>

#include "parallel/groups/process_group.h"

namespace keel::parallel {

// Identity; the gradient is summed. Enters a region that every rank computes a part of.
at::Tensor CopyToTensorParallel(const at::Tensor& x, ProcessGroup& group);
// Sum; the gradient passes. Leaves such a region.
at::Tensor ReduceFromTensorParallel(const at::Tensor& x, ProcessGroup& group,
                                    bool fixed_order = false);
// The parts joined along the last dim; the gradient is split.
at::Tensor GatherFromTensorParallel(const at::Tensor& x, ProcessGroup& group);

// Along dim 0, the tokens. [T / n, ...] -> [T, ...]; the gradient is reduce-scattered.
at::Tensor GatherFromSequenceParallel(const at::Tensor& x, ProcessGroup& group);
// The same, where every rank goes on to compute the same: the gradient, the same on all, is split.
at::Tensor JoinFromSequenceParallel(const at::Tensor& x, ProcessGroup& group);
// Sum of [T, ...], of which each rank keeps [T / n, ...]; the gradient is gathered.
at::Tensor ReduceScatterToSequenceParallel(const at::Tensor& x, ProcessGroup& group,
                                           bool fixed_order = false);

// The sum over a group's ranks of x [T, n], in place. With `fixed_order` in the order of ranks for
// any size; two ranks have but one order. Collective; no gradient.
void SumOverRanks(at::Tensor& x, ProcessGroup& group, bool fixed_order);

}  // namespace keel::parallel
