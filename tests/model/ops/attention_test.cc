// Packed attention and its gradients, sequence by sequence from the definition in fp64.

#include <ATen/ATen.h>
#include <gtest/gtest.h>

#include <cmath>
#include <vector>

#include "model/ops/ops.h"
#include "tests/support/ranks.h"

namespace keel::model {
namespace {

struct Case {
  int64_t heads, kv_heads, head_dim;
  std::vector<int64_t> boundaries;
  at::ScalarType dtype;
  bool with_sinks = false;
};

// `sinks` [heads]: a score more of each softmax, without a value; undefined: none.
at::Tensor Stock(const at::Tensor& qkv, const Case& c, const at::Tensor& sinks) {
  const int64_t d = c.head_dim;
  std::vector<at::Tensor> sequences;
  for (size_t s = 0; s + 1 < c.boundaries.size(); ++s) {
    const int64_t n = c.boundaries[s + 1] - c.boundaries[s];
    const at::Tensor rows = qkv.narrow(0, c.boundaries[s], n).view({n, -1, d});
    std::vector<at::Tensor> heads;
    for (int64_t h = 0; h < c.heads; ++h) {
      const int64_t group = h / (c.heads / c.kv_heads);
      const at::Tensor q = rows.select(1, h);
      const at::Tensor k = rows.select(1, c.heads + group);
      const at::Tensor v = rows.select(1, c.heads + c.kv_heads + group);
      const at::Tensor future = at::ones({n, n}, at::kBool).triu(1);
      at::Tensor scores = at::matmul(q, k.t()) / std::sqrt(static_cast<double>(d));
      scores = scores.masked_fill(future, -INFINITY);
      if (sinks.defined()) scores = at::cat({scores, sinks[h].expand({n, 1})}, 1);
      heads.push_back(at::matmul(at::softmax(scores, 1).narrow(1, 0, n), v));
    }
    sequences.push_back(at::cat(heads, 1));
  }
  return at::cat(sequences, 0);
}

TEST(PackedAttention, EachTokenSeesItsOwnSequenceUpToItself) {
  for (const Case& c :
       {Case{4, 2, 8, {0, 5, 6, 13}, at::kFloat}, Case{3, 3, 16, {0, 1, 2}, at::kFloat},
        Case{6, 1, 8, {0, 70, 200}, at::kFloat}, Case{4, 2, 8, {0, 9, 30}, at::kBFloat16},
        // Of a size that FlashAttention does not take.
        Case{4, 2, 12, {0, 9, 30}, at::kBFloat16},
        // Runs of equal length, of several, and with sinks.
        Case{4, 2, 8, {0, 5, 10, 23}, at::kFloat, true}, Case{6, 1, 8, {0, 70}, at::kFloat, true},
        Case{4, 2, 8, {0, 9, 30}, at::kBFloat16, true},
        Case{4, 2, 12, {0, 9, 30}, at::kBFloat16, true}}) {
    const int64_t tokens = c.boundaries.back();
    const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_dim;
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(8);
    const at::Device device = keel::testing::LoneDevice();
    at::Tensor qkv = at::randn({tokens, width}, generator).to(device, c.dtype).requires_grad_();
    const at::Tensor dy = at::randn({tokens, c.heads * c.head_dim}, generator).to(c.dtype);
    at::Tensor whole = qkv.detach().cpu().to(at::kDouble).requires_grad_();
    parallel::Parameter sinks;
    at::Tensor wide_sinks;
    ScoreOptions options;
    if (c.with_sinks) {
      sinks.shape = {c.heads};
      sinks.value = at::linspace(-2, 3, c.heads).to(device, c.dtype);
      sinks.gradient = at::ones({c.heads}, device);  // is added to
      wide_sinks = sinks.value.cpu().to(at::kDouble).requires_grad_();
      options.sinks = &sinks;
    }
    const at::Tensor expected = Stock(whole, c, wide_sinks);
    (expected * dy).sum().backward();

    Packing packing;
    packing.boundaries = c.boundaries;
    std::vector<at::Tensor> positions;
    for (size_t s = 0; s + 1 < c.boundaries.size(); ++s)
      positions.push_back(at::arange(c.boundaries[s + 1] - c.boundaries[s], at::kInt));
    packing.positions = at::cat(positions).to(device);
    const at::Tensor out =
        PackedAttention(qkv, {c.heads, c.kv_heads, c.head_dim}, packing, options);
    (out * dy.to(device)).sum().backward();
    const at::Tensor y = out.detach().cpu(), gradient = qkv.grad().cpu();
    const double tolerance = c.dtype == at::kFloat ? 2e-5 : 4e-2;
    EXPECT_TRUE(at::allclose(y.to(at::kDouble), expected, tolerance, tolerance)) << tokens;
    EXPECT_TRUE(at::allclose(gradient.to(at::kDouble), whole.grad(), tolerance, tolerance))
        << tokens;
    if (!c.with_sinks) continue;
    EXPECT_TRUE(at::allclose(sinks.gradient.cpu().to(at::kDouble), wide_sinks.grad() + 1, tolerance,
                             tolerance))
        << sinks.gradient << wide_sinks.grad();
  }
}

}  // namespace
}  // namespace keel::model
