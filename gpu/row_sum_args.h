// The gradient of a look-up in a table.
#pragma once

#include <cstdint>

namespace keel::gpu {

inline constexpr int64_t kRowPiece = 64;

// into[sorted[i]] += values[order[i]] for all i, to the same bits every time. `sorted` [count] are
// the rows in ascending order, `order` where each stands in `values` [.., n]. The values of a row
// are summed in pieces of kRowPiece, in their order, and the pieces in theirs: its sum depends on
// no other row.
struct AddToRows {
  int64_t count = 0;
  int64_t n = 0;
  const int64_t* sorted = nullptr;
  const int64_t* order = nullptr;
  const float* values = nullptr;
  float* into = nullptr;
  float* scratch = nullptr;  // [RowScratch(count), n], of any content
};
// Rows of sums of pieces.
inline int64_t RowScratch(int64_t count) { return 2 * ((count + kRowPiece - 1) / kRowPiece); }

}  // namespace keel::gpu
