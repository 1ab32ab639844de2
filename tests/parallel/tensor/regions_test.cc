// Each region's forward and backward, against what every rank gave, put together by hand.

#include "parallel/tensor/regions.h"

#include <gtest/gtest.h>

#include <functional>
#include <vector>

#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

constexpr int kRanks = 3;

// Whole numbers of rank r, so that no order of a sum matters.
at::Tensor Of(int rank, int kind, at::IntArrayRef shape) {
  const int64_t n = shape[0] * shape[1];
  return at::remainder(at::arange(n, at::kFloat) * (2 * rank + 3) + 5 * kind, 23).view(shape);
}
std::vector<at::Tensor> OfAll(int kind, at::IntArrayRef shape) {
  std::vector<at::Tensor> all;
  for (int rank = 0; rank < kRanks; ++rank) all.push_back(Of(rank, kind, shape));
  return all;
}
at::Tensor Sum(const std::vector<at::Tensor>& all) { return at::stack(all).sum(0); }

using RegionFunction = std::function<at::Tensor(const at::Tensor&, ProcessGroup&)>;

struct Expected {
  at::Tensor y, dx;
};

// Gives the region x of `in` on every rank and dy of `out` to its result; `same_gradient`: rank 0's
// everywhere.
void Check(const RegionFunction& region, at::IntArrayRef in, at::IntArrayRef out,
           const std::function<Expected(int rank, const std::vector<at::Tensor>& x,
                                        const std::vector<at::Tensor>& dy)>& expect,
           bool same_gradient = false) {
  const std::vector<at::Tensor> x = OfAll(1, in);
  std::vector<at::Tensor> dy = OfAll(2, out);
  if (same_gradient) dy.assign(kRanks, dy[0]);
  keel::testing::RunRanks(kRanks, 1, 1, [&](ParallelContext& context) {
    const auto rank = static_cast<size_t>(context.rank());
    at::Tensor mine = x[rank].clone().requires_grad_();
    const at::Tensor y = region(mine, context.tp());
    (y * dy[rank]).sum().backward();
    const Expected expected = expect(context.rank(), x, dy);
    EXPECT_TRUE(at::equal(y, expected.y)) << "y of rank " << rank;
    EXPECT_TRUE(at::equal(mine.grad(), expected.dx)) << "dx of rank " << rank;
    // A group of one is no region at all.
    EXPECT_TRUE(region(mine, context.dp()).is_same(mine));
  });
}

TEST(Regions, CopyPassesAndSumsTheGradient) {
  Check(CopyToTensorParallel, {4, 5}, {4, 5}, [](int rank, const auto& x, const auto& dy) {
    return Expected{x[static_cast<size_t>(rank)], Sum(dy)};
  });
}

TEST(Regions, ReduceSumsAndPassesTheGradient) {
  for (const bool fixed_order : {false, true}) {
    const auto region = [&](const at::Tensor& x, ProcessGroup& group) {
      return ReduceFromTensorParallel(x, group, fixed_order);
    };
    Check(region, {4, 5}, {4, 5}, [](int rank, const auto& x, const auto& dy) {
      return Expected{Sum(x), dy[static_cast<size_t>(rank)]};
    });
  }
}

TEST(Regions, GatherJoinsTheLastDimAndSplitsTheGradient) {
  Check(GatherFromTensorParallel, {4, 2}, {4, 6}, [](int rank, const auto& x, const auto& dy) {
    return Expected{at::cat(x, 1), dy[static_cast<size_t>(rank)].narrow(1, 2 * rank, 2)};
  });
}

TEST(Regions, GatherOfTokensSumsAndSplitsTheGradient) {
  Check(GatherFromSequenceParallel, {2, 5}, {6, 5}, [](int rank, const auto& x, const auto& dy) {
    return Expected{at::cat(x, 0), Sum(dy).narrow(0, 2 * rank, 2)};
  });
}

TEST(Regions, JoinOfTokensSplitsAGradientThatAllHave) {
  Check(
      JoinFromSequenceParallel, {2, 5}, {6, 5},
      [](int rank, const auto& x, const auto& dy) {
        return Expected{at::cat(x, 0), dy[0].narrow(0, 2 * rank, 2)};
      },
      /*same_gradient=*/true);
}

TEST(Regions, ReduceScatterOfTokensGathersTheGradient) {
  for (const bool fixed_order : {false, true}) {
    const auto region = [&](const at::Tensor& x, ProcessGroup& group) {
      return ReduceScatterToSequenceParallel(x, group, fixed_order);
    };
    Check(region, {6, 5}, {2, 5}, [](int rank, const auto& x, const auto& dy) {
      return Expected{Sum(x).narrow(0, 2 * rank, 2), at::cat(dy, 0)};
    });
  }
}

}  // namespace
}  // namespace keel::parallel
