// The decoder's element-wise operations and their gradients, from their definitions in fp64.

#include "model/ops/ops.h"

#include <gtest/gtest.h>

#include <cmath>
#include <functional>

#include "tests/model/ops/drawn.h"

namespace keel::model {
namespace {

void ExpectClose(const at::Tensor& found, const at::Tensor& expected, const char* what) {
  EXPECT_TRUE(at::allclose(found.to(at::kDouble), expected, 1e-5, 1e-5)) << what;
}

at::Tensor Normalized(const at::Tensor& x, const at::Tensor& weight, double eps) {
  return x / at::sqrt((x * x).mean({-1}, true) + eps) * weight;
}

TEST(Ops, RmsNormEqualsItsDefinition) {
  constexpr double kEps = 1e-3;
  at::Tensor x = Draw(1, {7, 24}).requires_grad_();
  parallel::Parameter weight = Holding(Draw(2, {24}));
  const at::Tensor dy = Draw(3, {7, 24});
  at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  at::Tensor w64 = weight.value.detach().to(at::kDouble).requires_grad_();
  const at::Tensor expected = Normalized(x64, w64, kEps);
  (expected * dy).sum().backward();
  const at::Tensor y = RmsNorm(x, weight, {kEps});
  (y * dy).sum().backward();
  ExpectClose(y, expected, "y");
  ExpectClose(x.grad(), x64.grad(), "dx");
  ExpectClose(weight.gradient - 1, w64.grad(), "dweight");
}

TEST(Ops, SwiGluEqualsItsDefinition) {
  at::Tensor x = (Draw(4, {9, 32}) * 3).requires_grad_();
  const at::Tensor dy = Draw(5, {9, 16});
  at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor gate = x64.narrow(1, 0, 16);
  const at::Tensor expected = gate * at::sigmoid(gate) * x64.narrow(1, 16, 16);
  (expected * dy).sum().backward();
  const at::Tensor y = GatedUnit(x, Activation::kSilu);
  (y * dy).sum().backward();
  ExpectClose(y, expected, "y");
  ExpectClose(x.grad(), x64.grad(), "dx");
}

// Pairs (i, i + d / 2) of q and k turn by position * theta^(-2i / d); v stays.
TEST(Ops, RopeTurnsPairsOfQAndKByTheirPositions) {
  const AttentionShape shape{3, 2, 8};
  constexpr int64_t kTokens = 11;
  RopeSpec spec;
  spec.theta = 500;
  const RopeTable table = MakeRopeTable(spec, shape.head_dim, {16, 16}, at::kCPU);
  const at::Tensor positions = at::tensor({0, 1, 2, 3, 4, 0, 1, 2, 15, 7, 0}, at::kInt);
  at::Tensor x = Draw(6, {kTokens, 7 * 8}).requires_grad_();
  const at::Tensor dy = Draw(7, {kTokens, 7 * 8});

  at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  const at::Tensor frequencies = at::pow(500.0, at::arange(4, at::kDouble) * -2.0 / 8.0);
  const at::Tensor angles = positions.to(at::kDouble).view({-1, 1, 1}) * frequencies;  // [T, 1, 4]
  const at::Tensor heads = x64.view({kTokens, 7, 8});
  const at::Tensor a = heads.narrow(1, 0, 5).narrow(2, 0, 4);
  const at::Tensor b = heads.narrow(1, 0, 5).narrow(2, 4, 4);
  const at::Tensor turned =
      at::cat({a * angles.cos() - b * angles.sin(), b * angles.cos() + a * angles.sin()}, 2);
  const at::Tensor expected = at::cat({turned, heads.narrow(1, 5, 2)}, 1).view({kTokens, -1});
  (expected * dy).sum().backward();
  const at::Tensor y = ApplyRope(x.clone(), shape, table, positions);  // in place
  (y * dy).sum().backward();
  ExpectClose(y, expected, "y");
  ExpectClose(x.grad(), x64.grad(), "dx");
}

TEST(Ops, HeadsAreNormalizedOneByOne) {
  constexpr double kEps = 1e-4;
  const AttentionShape shape{3, 2, 8};
  at::Tensor x = Draw(8, {5, 7 * 8}).requires_grad_();
  const at::Tensor dy = Draw(9, {5, 7 * 8});
  parallel::Parameter q_norm = Holding(Draw(10, {8}));
  parallel::Parameter k_norm = Holding(Draw(11, {8}));
  at::Tensor x64 = x.detach().to(at::kDouble).requires_grad_();
  at::Tensor q64 = q_norm.value.detach().to(at::kDouble).requires_grad_();
  at::Tensor k64 = k_norm.value.detach().to(at::kDouble).requires_grad_();
  const at::Tensor heads = x64.view({5, 7, 8});
  const at::Tensor expected =
      at::cat({Normalized(heads.narrow(1, 0, 3), q64, kEps),
               Normalized(heads.narrow(1, 3, 2), k64, kEps), heads.narrow(1, 5, 2)},
              1)
          .view({5, -1});
  (expected * dy).sum().backward();
  const at::Tensor y = NormalizeHeads(x, shape, q_norm, k_norm, {kEps});
  (y * dy).sum().backward();
  ExpectClose(y, expected, "y");
  ExpectClose(x.grad(), x64.grad(), "dx");
  ExpectClose(q_norm.gradient - 1, q64.grad(), "dq_norm");
  ExpectClose(k_norm.gradient - 1, k64.grad(), "dk_norm");
}

}  // namespace
}  // namespace keel::model
