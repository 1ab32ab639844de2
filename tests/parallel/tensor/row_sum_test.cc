#include "parallel/tensor/row_sum.h"

#include <gtest/gtest.h>

#include <vector>

#include "parallel/tensor/device_kernels.h"

namespace keel::parallel {
namespace {

struct Case {
  at::Tensor rows, values;
};

// 1,024 tokens of 40 ids, the first of which is half of them.
Case ManyOfFew(int64_t width) {
  at::manual_seed(3);
  Case c;
  c.rows = at::randint(0, 40, {1024}, at::kLong);
  c.rows.masked_fill_(at::rand({1024}).lt(0.5), 0);
  c.values = at::randn({1024, width});
  return c;
}

TEST(RowSumTest, AddsWhatASumInDoubleAdds) {
  const Case c = ManyOfFew(24);
  at::Tensor into = at::randn({50, 24});
  at::Tensor expected = into.to(at::kDouble);
  expected.index_add_(0, c.rows, c.values.to(at::kDouble));
  AddToRows(into, c.rows, c.values);
  EXPECT_LT((into.to(at::kDouble) - expected).abs().max().item<double>(), 1e-5);
  EXPECT_TRUE(at::equal(into.narrow(0, 40, 10), expected.narrow(0, 40, 10).to(at::kFloat)))
      << "rows that nothing was added to";
}

// In an order of a row's own values, whatever stands between them: so many threads or blocks as a
// device may have, and other tokens of the batch, change nothing.
TEST(RowSumTest, ARowsSumDependsOnItsOwnValuesAlone) {
  const Case c = ManyOfFew(8);
  at::Tensor all = at::zeros({50, 8});
  AddToRows(all, c.rows, c.values);
  for (const int64_t row : {0, 7, 39}) {
    const at::Tensor mine = c.rows.eq(row).nonzero().flatten();
    at::Tensor alone = at::zeros({50, 8});
    AddToRows(alone, c.rows.index_select(0, mine), c.values.index_select(0, mine));
    EXPECT_TRUE(at::equal(alone.select(0, row), all.select(0, row))) << "row " << row;
  }
  // By the kernel from the first to the last; by tensor operations a tree: (((1 + 2) + (3 + 4))
  // needs its last at the end) in doubling steps.
  at::Tensor five = at::zeros({1, 1});
  const std::vector<float> v = {1e8F, 3.0F, -1e8F, 5.0F, 7.0F};
  AddToRows(five, at::zeros({5}, at::kLong), at::tensor(v).view({5, 1}));
  const float two_last = v[3] + v[4], two_before = v[1] + v[2];
  const float in_order = (((v[0] + v[1]) + v[2]) + v[3]) + v[4];
  const float tree = (two_last + two_before) + v[0];
  EXPECT_NE(in_order, tree);
  EXPECT_EQ(five.item<float>(), KernelsFor(five) ? in_order : tree);
}

TEST(RowSumTest, NothingToAddChangesNothing) {
  at::Tensor into = at::ones({3, 2});
  AddToRows(into, at::empty({0}, at::kLong), at::empty({0, 2}));
  EXPECT_TRUE(at::equal(into, at::ones({3, 2})));
  // What is not finite stays in its row.
  at::Tensor values = at::ones({3, 2});
  values[1].fill_(std::numeric_limits<float>::infinity());
  AddToRows(into, at::tensor({0, 1, 2}, at::kLong), values);
  EXPECT_TRUE(at::equal(into[0], at::full({2}, 2.0F)));
  EXPECT_TRUE(at::equal(into[2], at::full({2}, 2.0F)));
  EXPECT_TRUE(into[1].isinf().all().item<bool>());
}

}  // namespace
}  // namespace keel::parallel
