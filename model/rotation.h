// Rotation: the table, and each token's row in it, by which a batch's queries and keys turn.
#pragma once

#include <ATen/ATen.h>

#include "model/ops.h"
#include "model/rope_spec.h"

namespace keel::model {

struct Rotation {
  RopeTable table;
  at::Tensor rows;  // [T] int32
};

// Makes the rotations of one RopeSpec, and keeps its table between calls. Used from one thread at a
// time.
class Rotator {
 public:
  Rotator(const RopeSpec& spec, int64_t head_dim, at::Device device)
      : spec_(spec), head_dim_(head_dim), device_(device) {}

  const RopeSpec& spec() const { return spec_; }
  // Of a packed batch. Where a text's length decides how it turns, each sequence that is longer
  // than the original context has rows of its own.
  Rotation Of(const Packing& packing);
  // Of tokens at `positions`, all below `end`. A spec that goes by_length() turns them as in a text
  // within the original context, which `end` must not exceed.
  Rotation At(const at::Tensor& positions, int64_t end);

 private:
  const RopeTable& Table(int64_t positions);

  RopeSpec spec_;
  int64_t head_dim_;
  at::Device device_;
  RopeTable table_;
};

}  // namespace keel::model
