// The table of positions against PyTorch's operations.

#include "model/ops/learned_positions.h"

#include <gtest/gtest.h>

#include "tests/model/ops/drawn.h"

namespace keel::model {
namespace {

parallel::Parameter Table(int64_t rows, int64_t hidden) {
  parallel::Parameter table;
  table.shape = {rows, hidden};
  table.value = Draw(1, {rows, hidden}).requires_grad_();
  table.gradient = at::zeros({rows, hidden});
  return table;
}

// Of two texts, the second shorter.
TEST(LearnedPositions, AreAddedAndLearnFromEveryTokenThatStandsThere) {
  parallel::Parameter table = Table(9, 5);
  const at::Tensor positions = at::tensor({0, 1, 2, 3, 4, 5, 6, 0, 1, 2}, at::kInt);
  const at::Tensor rows = positions.to(at::kLong) + 2;
  at::Tensor x = Draw(2, {10, 5}).requires_grad_();
  const at::Tensor dy = Draw(3, {10, 5});
  const at::Tensor y = AddPositions(x, positions, 2, table);
  EXPECT_TRUE(at::equal(y, x + table.value.index_select(0, rows)));
  (y * dy).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), dy));
  at::Tensor expected = at::zeros({9, 5});
  for (int64_t i = 0; i < 10; ++i) expected[rows[i].item<int64_t>()] += dy[i];
  EXPECT_TRUE(at::equal(table.gradient, expected));
  EXPECT_FALSE(table.value.grad().defined());

  const at::NoGradGuard no_grad;
  at::Tensor in_place = x.detach().clone();
  AddPositionsInPlace(in_place, positions, 2, table);
  EXPECT_TRUE(at::equal(in_place, y));
}

TEST(LearnedPositions, AFrozenTableLearnsNothing) {
  parallel::Parameter table = Table(3, 4);
  table.frozen = true;
  at::Tensor x = Draw(4, {3, 4}).requires_grad_();
  AddPositions(x, at::arange(3, at::kInt), 0, table).sum().backward();
  EXPECT_TRUE(at::equal(x.grad(), at::ones({3, 4})));
  EXPECT_EQ(table.gradient.abs().max().item<float>(), 0);
}

}  // namespace
}  // namespace keel::model
