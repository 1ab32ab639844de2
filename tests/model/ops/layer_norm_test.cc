// Layer normalisation as a differentiable operation, against PyTorch's.

#include "model/ops/layer_norm.h"

#include <gtest/gtest.h>

#include "tests/model/ops/drawn.h"

namespace keel::model {
namespace {

constexpr int64_t kWide = 24;
constexpr double kSmall = 1e-3;

class LayerNormOps : public ::testing::TestWithParam<std::tuple<double, bool>> {};

TEST_P(LayerNormOps, EqualsPyTorchs) {
  const auto [offset, with_bias] = GetParam();
  at::Tensor x = (Draw(1, {2, 19, kWide}) + 5).requires_grad_();
  parallel::Parameter weight = Holding(Draw(2, {kWide}));
  parallel::Parameter bias = Holding(Draw(3, {kWide}));
  const at::Tensor dy = Draw(4, {2, 19, kWide});
  at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  at::Tensor w64 = weight.value.detach().to(at::kDouble).requires_grad_();
  at::Tensor b64 = bias.value.detach().to(at::kDouble).requires_grad_();
  const at::Tensor expected =
      at::layer_norm(x64, {kWide}, w64 + offset, with_bias ? b64 : at::Tensor(), kSmall);
  (expected * dy).sum().backward();

  const NormOptions options = {kSmall, offset};
  const at::Tensor y = LayerNorm(x, weight, with_bias ? &bias : nullptr, options);
  (y * dy).sum().backward();
  const auto close = [](const at::Tensor& a, const at::Tensor& b) {
    return at::allclose(a.to(at::kDouble), b, 1e-5, 2e-5);
  };
  EXPECT_TRUE(close(y, expected));
  EXPECT_TRUE(close(x.grad(), x64.grad()));
  EXPECT_TRUE(close(weight.gradient - 1, w64.grad()));
  if (with_bias) {
    EXPECT_TRUE(close(bias.gradient - 1, b64.grad()));
  } else {
    EXPECT_TRUE(at::equal(bias.gradient, at::ones({kWide})));
  }
  EXPECT_FALSE(weight.value.grad().defined());

  // For generation, in place.
  const at::NoGradGuard no_grad;
  at::Tensor rows = x.detach().view({38, kWide}).clone();
  LayerNormInto(rows, weight, with_bias ? &bias : nullptr, options, rows);
  EXPECT_TRUE(at::equal(rows.view_as(y), y));
}

INSTANTIATE_TEST_SUITE_P(All, LayerNormOps,
                         ::testing::Combine(::testing::Values(0.0, 1.0), ::testing::Bool()));

TEST(LayerNormOps, OfBfloat16IsComputedInFp32) {
  const at::Tensor x = (Draw(5, {7, kWide}) + 30).to(at::kBFloat16);
  parallel::Parameter weight = Holding(Draw(6, {kWide}).to(at::kBFloat16));
  parallel::Parameter bias = Holding(Draw(7, {kWide}).to(at::kBFloat16));
  const at::NoGradGuard no_grad;
  at::Tensor y = at::empty_like(x);
  LayerNormInto(x, weight, &bias, {kSmall, 0}, y);
  const at::Tensor expected = at::layer_norm(x.to(at::kFloat), {kWide}, weight.value.to(at::kFloat),
                                             bias.value.to(at::kFloat), kSmall);
  EXPECT_TRUE(at::allclose(y.to(at::kFloat), expected, 4e-3, 1e-6));
}

// However many threads sum them.
TEST(LayerNormOps, GradientsOfTheWeightsDoNotDependOnThreads) {
  const int threads = at::get_num_threads();
  at::Tensor gradients[2];
  for (const int n : {1, 3}) {
    at::set_num_threads(n);
    at::Tensor x = Draw(8, {301, kWide}).requires_grad_();
    parallel::Parameter weight = Holding(Draw(9, {kWide}));
    parallel::Parameter bias = Holding(Draw(10, {kWide}));
    LayerNorm(x, weight, &bias, {kSmall, 0}).square().sum().backward();
    gradients[n == 1 ? 0 : 1] = at::cat({weight.gradient, bias.gradient, x.grad().view({-1})});
  }
  at::set_num_threads(threads);
  EXPECT_TRUE(at::equal(gradients[0], gradients[1]));
}

}  // namespace
}  // namespace keel::model
