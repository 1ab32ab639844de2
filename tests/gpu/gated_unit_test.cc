// SwiGLU's and GeGLU's kernels against their definition in fp64.

#include "gpu/gated_unit.h"

#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

TEST(GatedUnitKernel, EqualsItsDefinition) {
  for (const Gate gate : {Gate::kSilu, Gate::kGeluTanh}) {
    for (const auto& [rows, n] : {std::pair<int64_t, int64_t>{9, 16}, {3, 37}, {2, 9000}}) {
      for (const at::ScalarType type : kTypes) {
        const at::Tensor x = Draw(1, {rows, 2 * n}, type) * 3;
        const at::Tensor dout = Draw(2, {rows, n}, type);
        at::Tensor x64 = Wide(x);
        const at::Tensor gates = x64.narrow(1, 0, n);
        const at::Tensor y64 =
            (gate == Gate::kSilu ? at::silu(gates) : at::gelu(gates, "tanh")) * x64.narrow(1, n, n);
        (y64 * dout.to(at::kDouble)).sum().backward();
        const auto found = InBothOrders([&](const KernelTable& table) {
          at::Tensor y = at::empty_like(dout), dx = x.clone();
          table.gated_unit(
              {parallel::ElementOf(x), gate, rows, n, x.const_data_ptr(), y.data_ptr()}, nullptr);
          // In place.
          table.gated_unit_backward({parallel::ElementOf(x), gate, rows, n, dout.const_data_ptr(),
                                     dx.const_data_ptr(), dx.data_ptr()},
                                    nullptr);
          return std::vector<at::Tensor>{y, dx};
        });
        ExpectClose(found[0], y64, "y");
        ExpectClose(found[1], x64.grad(), "dx");
      }
    }
  }
}

}  // namespace
}  // namespace keel::gpu
