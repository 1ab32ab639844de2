// Parameter: a rank's part of one or several canonical weights, with its gradient.
//
// Values live in the flat memory of a WeightStore, gradients in that of a GradBuffer; layers hold
// pointers to Parameters and own nothing. A fused weight (q, k and v; gate and up) is one Parameter
// with several pieces.
#pragma once

#include <ATen/ATen.h>

#include <cstddef>
#include <cstdint>
#include <string>
#include <vector>

#include "common/shard_table.h"

namespace keel::parallel {

// Rows [row_begin, row_begin + box.size[0]) of the parameter hold `box` of a canonical tensor.
// Rows in no piece are padding.
struct ParameterPiece {
  std::string name;  // canonical: "model.layers.3.self_attn.q_proj.weight"
  Dims shape;        // global
  Box box;
  int64_t row_begin = 0;
  int tp_replica = 0;  // of TP ranks that hold the same rows, which this one is
};

struct Parameter {
  std::string name;  // of the storage, for messages: "layers.3.qkv.weight"
  Dims shape;        // local, [rows] or [rows, columns], padding included
  std::vector<ParameterPiece> pieces;
  // The same values on every TP rank (norms); written once, and counted once in norms.
  bool tp_replicated = false;
  // Each TP rank sees only some tokens or heads, so gradients are summed over TP before the update.
  bool tp_sum_gradient = false;
  // First and last stage hold copies whose gradients are summed over the tied-embedding group.
  bool tied = false;
  // Not the owner of the canonical tensor: written, exported and counted by another stage.
  bool replica = false;
  double init_stddev = 0;  // normal; with 0 the constant init_value
  double init_value = 0;

  at::Tensor value;  // [rows, columns], the model's dtype; requires grad, so that graphs reach it
  at::Tensor gradient;  // the same shape, fp32; backward adds to it, value.grad() stays undefined

  bool decays() const { return shape.size() >= 2; }  // weight decay on 2-D weights only
  int64_t rows() const { return shape[0]; }
  int64_t row_size() const { return shape.size() > 1 ? shape[1] : 1; }
  // [rows, columns] of this parameter at element `offset` of a flat memory.
  at::Tensor ViewIn(const at::Tensor& flat, int64_t offset) const {
    return flat.narrow(0, offset, rows() * row_size())
        .view(std::vector<int64_t>(shape.begin(), shape.end()));
  }
  // Where a piece lies in `memory`, which has this parameter's shape.
  StridedView ViewOf(const ParameterPiece& piece, const at::Tensor& memory) const {
    return {static_cast<std::byte*>(memory.data_ptr()) +
                static_cast<size_t>(piece.row_begin * row_size()) * memory.element_size(),
            ContiguousStrides(piece.box.size)};
  }
};

}  // namespace keel::parallel
