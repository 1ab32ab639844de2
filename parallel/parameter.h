// Parameter: a rank's part of one or several canonical weights, with its gradient.
//
// Values live in the flat memory of a WeightStore, gradients in that of a GradBuffer; layers hold
// pointers to Parameters and own nothing. A fused weight (q, k and v; gate and up) is one Parameter
// with several pieces. A constant is a Parameter, too: loaded, saved and handed on as the weights
// are, and never trained. Beside a weight that is frozen stand two small ones that learn in its
// place, its adapter.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "common/tensors/shard_table.h"
#include "parallel/layout.h"

namespace keel::parallel {

struct Parameter;

// What is added to the product with a frozen weight W (LoRA, Hu et al. 2021): scale B A x, apart
// for each of the canonical tensors that W is of.
struct Adapter {
  Parameter* a = nullptr;  // [tensors * rank, W's columns]
  Parameter* b = nullptr;  // [rows, rank]
  int64_t rank = 0;
  double scale = 1;
  // Rows [weight_row, weight_row + rows) of W, all of tensor number `tensor`, are those of B from
  // b_row on. Rows in no run have no adapter.
  struct Run {
    int64_t tensor = 0;
    int64_t weight_row = 0;
    int64_t b_row = 0;
    int64_t rows = 0;
  };
  std::vector<Run> runs;
  bool on = true;  // otherwise the product is that of the base model
};

// Rows of the parameter from row_begin on hold `box` of a canonical tensor. Where that has more
// dims than the parameter (experts that stand in one tensor), the box has size 1 in those that come
// first: its rows are those of one expert. Rows in no piece are padding.
struct ParameterPiece {
  std::string name;  // canonical: "model.layers.3.self_attn.q_proj.weight"
  Dims shape;        // global
  Box box;
  int64_t row_begin = 0;
  // The canonical tensor is a matrix with a row for each input: its columns are the parameter's
  // rows.
  bool transposed = false;
};

// The neighbouring TP ranks that hold the same values of a parameter, while others hold other ones:
// [rank - index, rank - index + count). So it is with fewer key/value heads than ranks.
struct TpHolders {
  int index = 0;  // which of them this rank is
  int count = 1;
  // Whether some rank's count is more than 1: the same on all TP ranks, and so is then the shape.
  bool shared = false;
};

struct Parameter {
  std::string name;  // of the storage, for messages: "layers.3.qkv.weight"
  Dims shape;        // local, [rows], [rows, columns] or [rows, 1, columns], padding included
  std::vector<ParameterPiece> pieces;
  // Along these axes every rank holds the same values (norms: along TP, too), which are written
  // once, and counted once in norms.
  AxisSet replicated_over = kDataAxes;
  // Along these each rank sees only some samples, tokens or heads, so that gradients are summed
  // over them before the update. A part of replicated_over.
  AxisSet gradient_sum_over = kDataAxes;
  // Each holder sees only some heads, so that gradients are summed over the holders, too.
  TpHolders tp_holders;
  // First and last stage hold copies whose gradients are summed over the tied-embedding group.
  bool tied = false;
  // Not the owner of the canonical tensor: written, exported and counted by another stage.
  bool replica = false;
  // Not trained: fp32 whatever the model's dtype, with no gradient, and in no bucket.
  bool constant = false;
  // A weight of the base of a model with adapters: not trained, and in no checkpoint.
  bool frozen = false;
  std::optional<Adapter> adapter;  // of a frozen weight
  double init_stddev = 0;          // normal; with 0 the constant init_value
  double init_value = 0;
  // Above 0: the logarithm of a number drawn evenly below this, whatever the two above say.
  double init_log_below = 0;
  // Above 0: drawn evenly between minus this and this, whatever those say.
  double init_evenly_within = 0;

  // Of `shape`, the model's dtype; of what is trained it requires grad, so that graphs reach it.
  at::Tensor value;
  // The same shape, fp32; backward adds to it, value.grad() stays undefined. Of what is not trained
  // it is empty for a matrix, and else memory that nobody reads.
  at::Tensor gradient;

  bool trained() const { return !constant && !frozen; }
  bool matrix() const { return shape.size() == 2; }
  bool decays() const { return shape.size() >= 2; }  // weight decay not on vectors
  int64_t rows() const { return shape[0]; }
  int64_t row_size() const { return rows() > 0 ? shape.elements() / rows() : 0; }
  // The dim of a piece's box along which the parameter's rows follow each other, and how many rows
  // the piece is.
  int RowDim(const ParameterPiece& piece) const {
    return piece.transposed ? 1 : piece.box.dims() - shape.size();
  }
  int64_t RowsOf(const ParameterPiece& piece) const { return piece.box.size[RowDim(piece)]; }
  // Of memory that holds rows of the piece, one behind another; `size`: of their box.
  Dims StridesOf(const ParameterPiece& piece, const Dims& size) const {
    return piece.transposed ? Dims{1, row_size()} : ContiguousStrides(size);
  }
  // This parameter at element `offset` of a flat memory.
  at::Tensor ViewIn(const at::Tensor& flat, int64_t offset) const {
    return flat.narrow(0, offset, rows() * row_size())
        .view(std::vector<int64_t>(shape.begin(), shape.end()));
  }
  // Where a piece lies in `memory`, which has this parameter's shape.
  StridedView ViewOf(const ParameterPiece& piece, const at::Tensor& memory) const {
    return {static_cast<std::byte*>(memory.data_ptr()) +
                static_cast<size_t>(piece.row_begin * row_size()) * memory.element_size(),
            StridesOf(piece, piece.box.size)};
  }
};

// The number of the copy at `seat` among all ranks' copies of the same values; 0 is the one that is
// written. It is the number of the rank that has coordinate 0 wherever the parameter is split;
// along the pipeline a tied copy counts as 1. `split_too`: axes along which the ranks have divided
// among themselves what is asked for, as ZeRO does.
inline int CopyNumber(const Parameter& p, const Seat& seat, AxisSet split_too = {}) {
  return seat.layout.Project(seat.rank, p.replicated_over.Without(split_too)) +
         p.tp_holders.index * seat.layout.stride(Axis::kTp) +
         (p.replica ? seat.layout.stride(Axis::kPp) : 0);
}
// How many ranks of `layout` hold this rank's values.
inline int Copies(const Parameter& p, const Layout& layout) {
  return layout.degree(p.replicated_over) * p.tp_holders.count * (p.tied ? 2 : 1);
}

}  // namespace keel::parallel
