// CopyOrder: in what order arrays of state are copied between device and host. Pure, torch-free.
//
// An update goes through weights, masters and moments at once, slice by slice. If one array were
// copied after the other, its first slice would have to wait for nearly all of them.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace keel::trainer {

// Bytes [at, at + bytes) of one of the arrays.
struct CopyPiece {
  size_t array = 0;
  int64_t at = 0;
  int64_t bytes = 0;
};

// Pieces of at most `most` bytes that cover arrays of these sizes, so that those at the same share
// of their arrays follow one another.
std::vector<CopyPiece> CopyOrder(std::span<const int64_t> sizes, int64_t most);

}  // namespace keel::trainer
