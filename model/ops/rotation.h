// Rotation: the table, and each token's row in it, by which a batch's queries and keys turn.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <span>
#include <vector>

#include "model/config/rope_spec.h"
#include "model/ops/ops.h"

namespace keel::model {

struct Rotation {
  RopeTable table;
  at::Tensor rows;  // [T] int32
};

// Tokens at positions first, first + 1, ... of a text of `length` tokens.
struct TextPart {
  int64_t first = 0;
  int64_t tokens = 0;
  int64_t length = 0;
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
  // Of parts of texts, one behind another: the row of each token in table(), which has then rows
  // for texts of `longest` tokens, too. Throws Error(kConfig) where kDynamic turns a text otherwise
  // than a shorter one: with every token more another way, which no cache can follow.
  std::vector<int32_t> RowsOf(std::span<const TextPart> parts, int64_t longest = 0);
  const RopeTable& table() const { return table_; }

 private:
  // Rows of all positions below `longest`, or of texts of at most so many tokens. Of kLongrope the
  // rows of texts beyond the original context stand behind that context's.
  const RopeTable& Table(int64_t longest);
  // Where in it the rows of a text of `length` tokens begin.
  int64_t FirstRow(int64_t length) const {
    return spec_.type == RopeType::kLongrope && length > spec_.original_positions
               ? spec_.original_positions
               : 0;
  }

  RopeSpec spec_;
  int64_t head_dim_;
  at::Device device_;
  RopeTable table_;
  bool has_far_ = false;  // whether table_ has rows of texts beyond the original context
};

}  // namespace keel::model
