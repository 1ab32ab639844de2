// Sums over neighbouring ranks, against the numbers themselves.

#include "parallel/groups/neighbour_sum.h"

#include <gtest/gtest.h>

#include <mutex>
#include <vector>

#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

// How many ranks of a group hold the same, run by run.
using Runs = std::vector<int>;

class NeighbourSumTest : public ::testing::TestWithParam<Runs> {};

TEST_P(NeighbourSumTest, IsThatOfTheRunAloneInTheOrderOfItsRanks) {
  const Runs& runs = GetParam();
  int world = 0;
  for (const int n : runs) world += n;
  std::mutex mutex;
  keel::testing::RunRanks(world, 1, 1, [&](ParallelContext& context) {
    int begin = 0;
    size_t run = 0;
    while (context.tp_rank() >= begin + runs[run]) begin += runs[run++];
    const int count = runs[run];
    // Fewer elements than ranks too, and numbers whose sum depends on the order.
    for (const int64_t size : {1, 2, 64, 1001}) {
      const auto of = [&](int rank) {
        return (at::arange(size, at::kFloat) + 1) * (rank % 2 == 0 ? 1e8f : -1e8f) /
               (3.0f + static_cast<float>(rank));
      };
      at::Tensor x = of(context.tp_rank()).view({size, 1});
      at::Tensor expected = of(begin);
      for (int rank = begin + 1; rank < begin + count; ++rank) expected += of(rank);
      SumOverNeighbours(x, context.tp(), {context.tp_rank() - begin, count}, 300);
      const std::lock_guard lock(mutex);
      EXPECT_TRUE(at::equal(x.view({-1}), expected))
          << size << " elements on rank " << context.tp_rank();
    }
  });
}

INSTANTIATE_TEST_SUITE_P(Runs, NeighbourSumTest,
                         ::testing::Values(Runs{1}, Runs{2}, Runs{1, 1}, Runs{2, 1}, Runs{1, 3},
                                           Runs{2, 2}, Runs{4}));

}  // namespace
}  // namespace keel::parallel
