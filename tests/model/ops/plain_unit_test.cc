// The activations of feed-forwards without a gate, against PyTorch's.

#include "model/ops/plain_unit.h"

#include <gtest/gtest.h>

#include "parallel/tensor/host_kernels.h"

namespace keel::model {
namespace {

at::Tensor Reference(const at::Tensor& x, Activation activation) {
  if (activation == Activation::kRelu) return at::relu(x);
  if (activation == Activation::kRelu2) return at::relu(x).square();
  return at::gelu(x, activation == Activation::kGelu ? "none" : "tanh");
}

class PlainUnitTest : public ::testing::TestWithParam<Activation> {};

TEST_P(PlainUnitTest, EqualsPyTorchsWithItsGradient) {
  at::Tensor x = at::linspace(-9, 9, 7 * 53).view({7, 53}).requires_grad_();
  at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor dy = at::linspace(-2, 3, 7 * 53).view({7, 53});
  const at::Tensor y = PlainUnit(x, GetParam());
  const at::Tensor expected = Reference(x64, GetParam());
  (y * dy).sum().backward();
  (expected * dy).sum().backward();
  EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected, 1e-5, 2e-6));
  EXPECT_TRUE(at::allclose(x.grad().to(at::kDouble), x64.grad(), 1e-5, 5e-6));

  at::Tensor in_place = x.detach().clone();
  PlainUnitInPlace(in_place, GetParam());
  EXPECT_TRUE(at::equal(in_place, y.detach()));
  // By kernels for hosts a row is the same alone.
  if (!parallel::ByHostKernels(x)) return;
  at::Tensor row = x.detach().narrow(0, 3, 1).clone();
  PlainUnitInPlace(row, GetParam());
  EXPECT_TRUE(at::equal(row, in_place.narrow(0, 3, 1)));
}

INSTANTIATE_TEST_SUITE_P(All, PlainUnitTest,
                         ::testing::Values(Activation::kRelu, Activation::kRelu2,
                                           Activation::kGelu, Activation::kGeluTanh));

TEST(PlainUnit, WithoutAGateThereIsNoSilu) {
  EXPECT_THROW(PlainUnit(at::ones({1, 2}), Activation::kSilu), c10::Error);
}

}  // namespace
}  // namespace keel::model
