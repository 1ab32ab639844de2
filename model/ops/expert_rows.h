// ExpertRows: the rows that experts compute, one for each token and each expert that it chose,
// sorted by expert, so that an expert's rows stand together and are one product.
//
// Within an expert they stand by token. The order is a function of the choice alone, so that a step
// that is run again gives the same bits.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <vector>

namespace keel::model {

struct ExpertRows {
  at::Tensor tokens;  // [T top_k] int64: the token of each row
  at::Tensor slots;   // [T top_k] int64: token * top_k + place of the choice, of each row
  at::Tensor rows;    // [T, top_k] int64: the row of each choice
  at::Tensor chosen;  // [T, top_k] int64: what they were sorted by
  // Which rows an expert has is known to the host or to the device; the other one is empty.
  std::vector<int64_t> begins;  // [experts + 1]: expert e has the rows [begins[e], begins[e + 1])
  at::Tensor ends;              // [experts] int32: the rows of experts up to e

  int64_t count() const { return tokens.size(0); }
  // [T top_k] int64: the expert of each row.
  at::Tensor Experts() const { return chosen.reshape({-1}).index_select(0, slots); }
  // values [T, ...] of tokens as rows.
  at::Tensor Spread(const at::Tensor& values) const { return values.index_select(0, tokens); }
  // The sum of each token's rows in the order of its choices, each times `weights` [T, top_k] where
  // given; added up in fp32, of `values`' dtype. values [rows, n] -> [T, n].
  at::Tensor Gather(const at::Tensor& values, const at::Tensor& weights = {}) const;
};

// chosen [T, top_k] int64, on any device; its values are copied to the host, which then knows
// `begins`.
ExpertRows SortByExpert(const at::Tensor& chosen, int64_t experts);
// The same rows in the same order, sorted where `chosen` is; the host waits for nothing, and knows
// none of them.
ExpertRows SortByExpertInPlace(const at::Tensor& chosen, int64_t experts);

}  // namespace keel::model
