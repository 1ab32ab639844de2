#include "parallel/tensor/row_sum.h"

#include <tuple>

namespace keel::parallel {

// The values are sorted by row, those of one row in the order that they had. Then in log2(T) passes
// each place adds what the place d = 1, 2, 4, ... before it holds, if that is of the same row: it
// holds the sum of the last 2d values of its row up to itself. The last place of a row ends up with
// all of them. Every place of the row then writes the same total, so that it does not matter which
// of them writes last.
void AddToRows(at::Tensor& into, const at::Tensor& rows, const at::Tensor& values) {
  const int64_t count = rows.size(0);
  if (count == 0) return;
  const auto [sorted, order] = at::sort(rows, /*stable=*/true, 0, /*descending=*/false);
  at::Tensor sums = values.index_select(0, order);
  const at::Tensor zero = at::zeros({}, sums.options());
  for (int64_t d = 1; d < count; d *= 2) {
    const at::Tensor same = sorted.narrow(0, d, count - d).eq(sorted.narrow(0, 0, count - d));
    const at::Tensor before =
        at::where(same.unsqueeze(1), sums.narrow(0, 0, count - d), zero);  // a copy
    sums.narrow(0, d, count - d).add_(before);
  }
  const at::Tensor last =
      at::searchsorted(sorted, sorted, /*out_int32=*/false, /*right=*/true).sub_(1);
  const at::Tensor totals = sums.index_select(0, last);
  into.index_copy_(0, sorted, into.index_select(0, sorted).add_(totals));
}

}  // namespace keel::parallel
