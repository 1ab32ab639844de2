#include "parallel/tensor/row_product.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "common/kernels/cpu_decode.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/host_tensor.h"
#include "parallel/tensor/matrix_product.h"

namespace keel::parallel {

namespace {

constexpr int64_t kFixedRows = 64;

void LinearOnDevice(const at::Tensor& x, const at::Tensor& w, const at::Tensor* bias,
                    at::Tensor& out, Arithmetic arithmetic) {
  const auto multiply = [&](const at::Tensor& rows) { return Product(rows, w.t(), bias); };
  if (arithmetic != Arithmetic::kBatchInvariant) {
    if (bias == nullptr && out.scalar_type() == x.scalar_type()) {
      ProductInto(out, x, w.t());
    } else {
      out.copy_(multiply(x));
    }
    return;
  }
  at::Tensor slab = at::zeros({kFixedRows, x.size(1)}, x.options());
  for (int64_t row = 0; row < x.size(0); row += kFixedRows) {
    const int64_t rows = std::min(kFixedRows, x.size(0) - row);
    slab.narrow(0, 0, rows).copy_(x.narrow(0, row, rows));
    out.narrow(0, row, rows).copy_(multiply(slab).narrow(0, 0, rows));
  }
}

}  // namespace

void LinearInto(const at::Tensor& x, const at::Tensor& w, const at::Tensor* bias, at::Tensor& out,
                Arithmetic arithmetic) {
  if (!ByHostKernels(x)) return LinearOnDevice(x, w, bias, out, arithmetic);
  const int64_t m = x.size(0);
  const int64_t k = x.size(1);
  const int64_t n = w.size(0);
  // Threads take whole tiles of 16 columns, at least so many that starting them pays.
  constexpr int64_t kTile = 16;
  const int64_t tiles = (n + kTile - 1) / kTile;
  const int64_t grain = std::max<int64_t>(1, 65536 / (m * k * kTile));
  if (!w.is_contiguous()) {
    TORCH_CHECK(w.t().is_contiguous() && bias == nullptr && out.scalar_type() == x.scalar_type(),
                "LinearInto: a weight with strides ", w.strides());
    WithHostType(x, [&]<typename T>(T) {
      at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
        kernels::MatMul<T>(HostData<T>(x), m, k, HostData<T>(w), n, begin * kTile,
                           std::min(n, end * kTile), HostData<T>(out));
      });
    });
    return;
  }
  WithHostType(x, [&]<typename T>(T) {
    const T* b = bias != nullptr ? HostData<T>(*bias) : nullptr;
    at::parallel_for(0, tiles, grain, [&](int64_t begin, int64_t end) {
      const int64_t last = std::min(n, end * kTile);
      if (out.scalar_type() == at::kFloat) {
        kernels::MatMulTransposed<T, float>(HostData<T>(x), m, k, HostData<T>(w), b, n,
                                            begin * kTile, last, HostData<float>(out));
      } else {
        kernels::MatMulTransposed<T, T>(HostData<T>(x), m, k, HostData<T>(w), b, n, begin * kTile,
                                        last, HostData<T>(out));
      }
    });
  });
}

at::Tensor Multiplied(const at::Tensor& x, const at::Tensor& w, const at::Tensor* bias,
                      Arithmetic arithmetic) {
  if (arithmetic != Arithmetic::kBatchInvariant) return Product(x, w.t(), bias);
  at::Tensor out = at::empty({x.size(0), w.size(0)}, x.options());
  LinearInto(x.contiguous(), w, bias, out, arithmetic);
  return out;
}

}  // namespace keel::parallel
