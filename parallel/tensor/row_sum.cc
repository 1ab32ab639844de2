#include "parallel/tensor/row_sum.h"

#include <tuple>

#include "parallel/tensor/device_kernels.h"
#include "parallel/tensor/host_kernels.h"

namespace keel::parallel {

namespace {

// The values are sorted by row, those of one row in the order that they had. Then in log2(T) passes
// each place adds what the place d = 1, 2, 4, ... before it holds, if that is of the same row: it
// holds the sum of the last 2d values of its row up to itself. The last place of a row ends up with
// all of them. Every place of the row then writes the same total, so that it does not matter which
// of them writes last.
void AddByTensorOperations(at::Tensor& into, const at::Tensor& sorted, const at::Tensor& order,
                           const at::Tensor& values) {
  const int64_t count = sorted.size(0);
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

}  // namespace

void AddToRows(at::Tensor& into, const at::Tensor& rows, const at::Tensor& values) {
  const int64_t count = rows.size(0);
  if (count == 0) return;
  const auto [sorted, order] = at::sort(rows, /*stable=*/true, 0, /*descending=*/false);
  const auto kernels = KernelsFor(into);
  if (!kernels || into.scalar_type() != at::kFloat || !into.is_contiguous()) {
    AddByTensorOperations(into, sorted, order, values);
    return;
  }
  const at::Tensor added = values.contiguous();
  const at::Tensor scratch = at::empty({gpu::RowScratch(count), into.size(1)}, into.options());
  kernels->table.add_to_rows(
      {count, into.size(1), sorted.const_data_ptr<int64_t>(), order.const_data_ptr<int64_t>(),
       added.const_data_ptr<float>(), into.data_ptr<float>(), scratch.data_ptr<float>()},
      kernels->stream);
}

void AddLookupGradient(at::Tensor& into, const at::Tensor& rows, const at::Tensor& values) {
  if (ByHostKernels(values)) {
    into.index_add_(0, rows, values);
  } else {
    AddToRows(into, rows, values);
  }
}

}  // namespace keel::parallel
