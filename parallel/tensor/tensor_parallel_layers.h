// Linear layers and the embedding, split over the tensor-parallel group (Megatron-LM, Shoeybi
// 2019).
//
// Layers hold pointers: parameters and group must outlive them. Weight gradients are added to
// Parameter::gradient in fp32 by the backward itself; nothing is stored in value.grad().
#pragma once

#include <ATen/ATen.h>

#include "parallel/groups/process_group.h"
#include "parallel/parameter.h"
#include "parallel/tensor/arithmetic.h"

namespace keel::parallel {

// y = x W^T (+ b) on this rank alone, with the weight's adapter where it has one. x [T, in],
// W [out, in], y [T, out], all of one dtype.
at::Tensor Linear(const at::Tensor& x, Parameter& weight, Parameter* bias, Arithmetic arithmetic);
// The same for generation (row_product.h): out [T, out]. Not differentiable.
void LinearInto(const at::Tensor& x, const Parameter& weight, const Parameter* bias,
                at::Tensor& out, Arithmetic arithmetic);

// The same product in fp32, whatever the dtype of x and W: a router's (model/ops/router.h).
at::Tensor LinearInFp32(const at::Tensor& x, Parameter& weight, Arithmetic arithmetic);

// gradient (fp32) += dy^T x, for x [T, in] and dy [T, out] in the model's dtype.
void AccumulateWeightGradient(at::Tensor& gradient, const at::Tensor& dy, const at::Tensor& x);

// Where a layer's input and output stand: whole on each TP rank, or split by tokens; and how its
// forward is computed: as training does, or with generation's bits (kBatchInvariant).
struct TensorParallel {
  ProcessGroup* group = nullptr;
  bool sequence_parallel = false;
  Arithmetic arithmetic = Arithmetic::kTraining;
};

// What a layer whose output dim is split multiplies: x [T, in] (or [T / n, in] with sequence
// parallelism) as [T, in] on every rank; its gradient is summed. Collective over TP.
at::Tensor EnterColumns(const at::Tensor& x, const TensorParallel& tp);

// The sum over ranks of x [T, out], each rank's part of it: [T, out] on every rank (or [T / n, out]
// with sequence parallelism). Collective over TP.
at::Tensor LeaveRows(const at::Tensor& x, const TensorParallel& tp);

// The output dim is split. Input [T, in] (or [T / n, in] with sequence parallelism), output
// [T, out / n]. Collective over TP.
class ColumnParallelLinear {
 public:
  ColumnParallelLinear(TensorParallel tp, Parameter* weight, Parameter* bias)
      : tp_(tp), weight_(weight), bias_(bias) {}
  at::Tensor Forward(const at::Tensor& x) const;

 private:
  TensorParallel tp_;
  Parameter* weight_;
  Parameter* bias_;  // may be null
};

// The input dim is split. Input [T, in / n], output [T, out] (or [T / n, out]). The bias, whole on
// each rank, is added after the sum. Collective over TP.
class RowParallelLinear {
 public:
  RowParallelLinear(TensorParallel tp, Parameter* weight, Parameter* bias = nullptr)
      : tp_(tp), weight_(weight), bias_(bias) {}
  at::Tensor Forward(const at::Tensor& x) const;

 private:
  TensorParallel tp_;
  Parameter* weight_;
  Parameter* bias_;  // may be null
};

// Rows of the table are split: rank r holds ids [r * rows, (r + 1) * rows), the last ones padding.
// ids [T] int64, output [T, hidden] (or [T / n, hidden]). Collective over TP.
class VocabParallelEmbedding {
 public:
  VocabParallelEmbedding(TensorParallel tp, Parameter* weight) : tp_(tp), weight_(weight) {}
  at::Tensor Forward(const at::Tensor& ids) const;

 private:
  TensorParallel tp_;
  Parameter* weight_;
};

// Rows of the padded vocabulary per rank.
inline int64_t VocabRowsPerRank(int64_t vocab_size, int tp) { return (vocab_size + tp - 1) / tp; }

}  // namespace keel::parallel
