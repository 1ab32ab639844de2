// The optimizer's kernels against the host's kernel, AdamW's definition and sums in fp64.

#include "gpu/adamw.h"

#include "common/kernels/cpu_kernels.h"
#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

TEST(AdamWKernel, IsTheHostsStep) {
  for (const int64_t n : {5, 4096, 10000, 10001}) {
    for (const bool bf16 : {true, false}) {
      const at::Tensor gradient = Draw(1, {n}) * 0.01;
      const at::Tensor master = Draw(2, {n}), m = Draw(3, {n}) * 0.001;
      const at::Tensor v = Draw(4, {n}).square() * 1e-5;
      const double b1 = 0.9, b2 = 0.999, lr = 1e-3, decay = 0.1;
      const kernels::AdamWScalars scalars({lr, b1, b2, 1e-8, decay, 1, 0.7});
      const auto found = InBothOrders([&](const KernelTable& table) {
        std::vector<at::Tensor> state = {master.clone(), m.clone(), v.clone(),
                                         at::zeros({n}, at::kBFloat16)};
        AdamW step;
        step.n = n;
        step.beta1_rest = scalars.beta1_rest;
        step.beta2 = scalars.beta2;
        step.beta2_rest = scalars.beta2_rest;
        step.eps = scalars.eps;
        step.kept = scalars.kept;
        step.step_size = scalars.step_size;
        step.bias_correction2_sqrt = scalars.bias_correction2_sqrt;
        step.gradient_scale = scalars.gradient_scale;
        step.gradient = gradient.const_data_ptr<float>();
        step.master = state[0].data_ptr<float>();
        step.exp_avg = state[1].data_ptr<float>();
        step.exp_avg_sq = state[2].data_ptr<float>();
        step.weight = bf16 ? static_cast<uint16_t*>(state[3].data_ptr()) : nullptr;
        table.adamw(step, nullptr);
        return state;
      });
      std::vector<at::Tensor> host = {master.clone(), m.clone(), v.clone(),
                                      at::zeros({n}, at::kBFloat16)};
      kernels::AdamW(scalars, n, gradient.const_data_ptr<float>(), host[0].data_ptr<float>(),
                     host[1].data_ptr<float>(), host[2].data_ptr<float>(),
                     bf16 ? static_cast<uint16_t*>(host[3].data_ptr()) : nullptr);
      // The host's may fuse a product with a sum: a rounding less.
      for (size_t i = 0; i < 3; ++i)
        ExpectClose(found[i], host[i].to(at::kDouble), "state " + std::to_string(i), 5e-7);
      EXPECT_TRUE(at::equal(found[3], bf16 ? found[0].to(at::kBFloat16) : host[3]));

      // By its definition.
      const at::Tensor g = gradient.to(at::kDouble) * 0.7;
      const at::Tensor m64 = m.to(at::kDouble) * b1 + g * (1 - b1);
      const at::Tensor v64 = v.to(at::kDouble) * b2 + g * g * (1 - b2);
      const at::Tensor moved = master.to(at::kDouble) * (1 - lr * decay) -
                               lr / (1 - b1) * m64 / (v64.sqrt() / std::sqrt(1 - b2) + 1e-8);
      ExpectClose(found[0], moved, "master", 1e-6);
    }
  }
}

TEST(AdamWKernel, SumsSquaresByPieces) {
  for (const int64_t n : {7L, 1L << 15, (1L << 15) + 4, 100003L}) {
    const at::Tensor x = Draw(5, {n});
    const auto found = InBothOrders([&](const KernelTable& table) {
      at::Tensor partial = at::full({SumPieces(n)}, NAN, at::kDouble);
      table.sum_of_squares({n, x.const_data_ptr<float>(), partial.data_ptr<double>()}, nullptr);
      return std::vector<at::Tensor>{partial};
    });
    for (int64_t i = 0; i < SumPieces(n); ++i) {
      const double expected = x.narrow(0, i * kSumPiece, std::min(kSumPiece, n - i * kSumPiece))
                                  .to(at::kDouble)
                                  .square()
                                  .sum()
                                  .item<double>();
      EXPECT_NEAR(found[0][i].item<double>(), expected, 1e-12 * expected);
    }
  }
}

}  // namespace
}  // namespace keel::gpu
