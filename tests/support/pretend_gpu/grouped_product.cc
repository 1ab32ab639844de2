// PyTorch's grouped product of bf16 matrices, by its definition, on a pretend GPU: in fp64, so that
// a row's bits do not depend on how many there are. What its kernel does not write is not written.

#include <ATen/ATen.h>
#include <ATen/native/GroupedMMUtils.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include "tests/support/pretend_gpu/recording.h"
#include "tests/support/pretend_gpu/tensors.h"

namespace keel::testing::pretend {

namespace {

void Fill(const at::Tensor& a, const at::Tensor& b, const at::Tensor& ends, bool of_rows,
          const at::Tensor& out) {
  const at::Tensor left = HostViewOf(a).to(at::kDouble), right = HostViewOf(b).to(at::kDouble);
  const at::Tensor to = HostViewOf(out), host_ends = HostViewOf(ends);
  int64_t begin = 0;
  for (int64_t g = 0; g < host_ends.size(0); ++g) {
    const int64_t rows = host_ends[g].item<int64_t>() - begin;
    TORCH_CHECK(rows >= 0, "pretend GPU: group ", g, " ends before it begins");
    if (rows > 0) {
      const at::Tensor mine = left.narrow(of_rows ? 0 : 1, begin, rows);
      if (of_rows) {
        to.narrow(0, begin, rows).copy_(at::mm(mine, right[g]));
      } else {
        to[g].copy_(at::mm(mine, right.narrow(0, begin, rows)));
      }
    }
    begin += rows;
  }
}

at::Tensor GroupedProduct(const at::Tensor& a, const at::Tensor& b,
                          const std::optional<at::Tensor>& ends,
                          const std::optional<at::Tensor>& bias,
                          std::optional<at::ScalarType> type) {
  const at::RecordFunctionGuard one_operation(false);
  at::native::_grouped_mm_validate_inputs(a, b, ends, bias, type);
  TORCH_CHECK(a.scalar_type() == at::kBFloat16 && b.scalar_type() == at::kBFloat16 &&
                  type.value_or(at::kBFloat16) == at::kBFloat16,
              "pretend GPU: a grouped product of other than bf16 waits for the device");
  const bool of_rows = b.dim() == 3;
  TORCH_CHECK(a.dim() == 2 && a.stride(of_rows ? 1 : 0) == 1 && (of_rows || b.stride(1) == 1),
              "pretend GPU: groups of any number of rows want other strides");
  TORCH_CHECK(ends->device() == a.device(), "pretend GPU: ends of the host");
  const at::Tensor out = at::native::create_grouped_gemm_output_tensor(a, b, ends, at::kBFloat16);
  Perform([=, ends = *ends] { Fill(a, b, ends, of_rows, out); });
  return out;
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) { m.impl("_grouped_mm", GroupedProduct); }

}  // namespace keel::testing::pretend
