// A sum over some neighbouring ranks of a group, of which others hold something else.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

#include "parallel/groups/process_group.h"

namespace keel::parallel {

// Ranks [rank - index, rank - index + count) of a group.
struct Neighbours {
  int index = 0;  // this rank's among them
  int count = 1;
};

// x becomes the sum over `neighbours`, taken in the order of their ranks, so that all of them have
// the same bits. x is contiguous. Each neighbour sums a part for all of them, so that a rank sends
// and receives less than twice x, however many they are; it goes in pieces of `piece` elements, of
// which one more is held besides x. Collective over the whole `group`, with x of one size on all
// ranks; the runs of its ranks must not overlap.
void SumOverNeighbours(at::Tensor& x, ProcessGroup& group, const Neighbours& neighbours,
                       int64_t piece = int64_t{16} << 20);

}  // namespace keel::parallel
