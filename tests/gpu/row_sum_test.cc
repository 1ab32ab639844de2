// Sums of rows that repeat, against index_add in fp64.

#include "gpu/row_sum.h"

#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

TEST(RowSumKernel, AddsEveryValueOnceWhateverRepeats) {
  constexpr int64_t kTable = 50;
  // All different; rows of one piece, and of several, that begin at any place; one row alone.
  const std::vector<at::Tensor> kRows = {
      at::arange(40, at::kLong),
      at::arange(300, at::kLong).remainder(7),
      at::arange(64, at::kLong).floor_divide(32),
      at::cat(
          {at::zeros({63}, at::kLong), at::ones({2}, at::kLong), at::full({200}, 2, at::kLong)}),
      at::full({129}, 49, at::kLong),
      at::full({128}, 3, at::kLong),
      at::zeros({1}, at::kLong)};
  for (const at::Tensor& rows : kRows) {
    for (const int64_t n : {3, 8, 1028}) {
      const int64_t count = rows.size(0);
      const at::Tensor values = Draw(1, {count, n});
      const auto [sorted, order] = at::sort(rows, /*stable=*/true, 0, /*descending=*/false);
      const auto found =
          InBothOrders([&, sorted = sorted, order = order](const KernelTable& table) {
            at::Tensor into = at::ones({kTable, n});
            at::Tensor scratch = at::full({RowScratch(count), n}, NAN);
            table.add_to_rows(
                {count, n, sorted.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>(),
                 values.const_data_ptr<float>(), into.data_ptr<float>(), scratch.data_ptr<float>()},
                nullptr);
            return std::vector<at::Tensor>{into};
          });
      const at::Tensor expected =
          at::ones({kTable, n}, at::kDouble).index_add(0, rows, values.to(at::kDouble));
      ExpectClose(found[0], expected, std::to_string(count) + " rows of " + std::to_string(n),
                  1e-5);
    }
  }
}

}  // namespace
}  // namespace keel::gpu
