#include "parallel/groups/neighbour_sum.h"

#include <algorithm>
#include <vector>

namespace keel::parallel {

namespace {

// One piece, flat.
void SumPiece(at::Tensor all, ProcessGroup& group, const Neighbours& neighbours) {
  const int64_t n = neighbours.count;
  // Part i of the piece is summed by the i-th neighbour.
  const auto begin_of = [&](int64_t i) { return all.numel() * i / n; };
  const int64_t mine = begin_of(neighbours.index + 1) - begin_of(neighbours.index);
  std::vector<int64_t> parts(static_cast<size_t>(group.size()), 0);
  std::vector<int64_t> copies(parts);
  if (n == 1) {  // a rank by itself takes part with nothing
    at::Tensor nothing = all.narrow(0, 0, 0);
    for (int round = 0; round < 2; ++round)
      group.AllToAllAsync(nothing, nothing.clone(), copies, parts)->Wait();
    return;
  }
  for (int64_t i = 0; i < n; ++i) {
    const auto peer = static_cast<size_t>(group.rank() - neighbours.index + i);
    parts[peer] = begin_of(i + 1) - begin_of(i);
    copies[peer] = mine;
  }
  // 1. This rank's part of every neighbour's piece, summed.
  at::Tensor arrived = at::empty({n, mine}, all.options());
  group.AllToAllAsync(arrived, all, copies, parts)->Wait();
  at::Tensor sum = arrived.select(0, 0).clone();
  for (int64_t i = 1; i < n; ++i) sum.add_(arrived.select(0, i));
  // 2. Every neighbour's sum.
  arrived.copy_(sum.expand({n, mine}));
  group.AllToAllAsync(all, arrived, parts, copies)->Wait();
}

}  // namespace

void SumOverNeighbours(at::Tensor& x, ProcessGroup& group, const Neighbours& neighbours,
                       int64_t piece) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  const at::Tensor all = x.view({-1});
  for (int64_t begin = 0; begin < all.numel(); begin += piece)
    SumPiece(all.narrow(0, begin, std::min(piece, all.numel() - begin)), group, neighbours);
}

}  // namespace keel::parallel
