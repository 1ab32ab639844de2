#include "parallel/neighbour_sum.h"

#include <cstdint>
#include <vector>

namespace keel::parallel {

void SumOverNeighbours(at::Tensor& x, ProcessGroup& group, const Neighbours& neighbours) {
  if (group.size() == 1) return;
  const at::NoGradGuard no_grad;
  const int64_t n = neighbours.count;
  at::Tensor all = x.view({-1});
  // Part i of x is summed by the i-th neighbour.
  const auto begin_of = [&](int64_t i) { return all.numel() * i / n; };
  const int64_t mine = begin_of(neighbours.index + 1) - begin_of(neighbours.index);
  std::vector<int64_t> parts(static_cast<size_t>(group.size()), 0);
  std::vector<int64_t> copies(parts);
  if (n > 1) {
    for (int64_t i = 0; i < n; ++i) {
      const auto peer = static_cast<size_t>(group.rank() - neighbours.index + i);
      parts[peer] = begin_of(i + 1) - begin_of(i);
      copies[peer] = mine;
    }
  } else {
    all = all.narrow(0, 0, 0);  // a rank by itself takes part with nothing
  }
  // 1. This rank's part of every neighbour's x, summed.
  at::Tensor arrived = at::empty({n > 1 ? n * mine : 0}, x.options());
  group.AllToAllAsync(arrived, all, copies, parts)->Wait();
  at::Tensor sum = arrived.narrow(0, 0, n > 1 ? mine : 0).clone();
  for (int64_t i = 1; i < n; ++i) sum.add_(arrived.narrow(0, i * mine, mine));
  // 2. Every neighbour's sum.
  group.AllToAllAsync(all, sum.repeat({n}), parts, copies)->Wait();
}

}  // namespace keel::parallel
