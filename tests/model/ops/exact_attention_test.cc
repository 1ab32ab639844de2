#include "model/ops/exact_attention.h"

#include <gtest/gtest.h>

#include <cmath>

namespace keel::model {
namespace {

struct ExactCase {
  int64_t heads, kv_heads, head_dim;
  ScoreOptions options;
  bool with_sinks = false;
};

// All scores at once, in float64.
at::Tensor Definition(const at::Tensor& qkv, const ExactCase& c, const std::vector<int64_t>& cuts,
                      const at::Tensor& sinks) {
  const int64_t d = c.head_dim;
  std::vector<at::Tensor> parts;
  for (size_t i = 0; i + 1 < cuts.size(); ++i) {
    const int64_t n = cuts[i + 1] - cuts[i];
    const at::Tensor x =
        qkv.narrow(0, cuts[i], n).view({n, c.heads + 2 * c.kv_heads, d}).transpose(0, 1);
    const int64_t times = c.heads / c.kv_heads;
    const at::Tensor q = x.narrow(0, 0, c.heads);
    const at::Tensor k = x.narrow(0, c.heads, c.kv_heads).repeat_interleave(times, 0);
    const at::Tensor v = x.narrow(0, c.heads + c.kv_heads, c.kv_heads).repeat_interleave(times, 0);
    const double scale =
        c.options.scale != 0 ? c.options.scale : 1 / std::sqrt(static_cast<double>(d));
    at::Tensor scores = at::matmul(q, k.transpose(1, 2)) * scale;
    if (c.options.softcap > 0) scores = at::tanh(scores / c.options.softcap) * c.options.softcap;
    const at::Tensor distance =
        at::arange(n, at::kLong).unsqueeze(1) - at::arange(n, at::kLong).unsqueeze(0);
    at::Tensor hidden = distance.lt(0);
    if (c.options.window > 0) hidden = hidden.logical_or(distance.ge(c.options.window));
    scores = scores.masked_fill(hidden, -INFINITY);
    if (sinks.defined()) scores = at::cat({scores, sinks.view({-1, 1, 1}).expand({-1, n, 1})}, -1);
    const at::Tensor p = at::softmax(scores, -1).narrow(-1, 0, n);
    parts.push_back(at::matmul(p, v).transpose(0, 1).reshape({n, c.heads * d}));
  }
  return at::cat(parts);
}

// Sequences longer than a block of queries, than the window and than neither.
TEST(ExactAttention, EqualsItsDefinitionForwardAndBackward) {
  const std::vector<int64_t> cuts = {0, 300, 340, 380, 397, 400};
  for (const ExactCase& c :
       {ExactCase{4, 2, 8, {.window = 37}}, ExactCase{3, 3, 6, {.window = 150}},
        ExactCase{4, 1, 8, {.softcap = 1.5}},
        ExactCase{6, 2, 4, {.window = 5, .scale = 0.7, .softcap = 2}},
        ExactCase{6, 2, 4, {.window = 5}, true}, ExactCase{4, 1, 8, {.softcap = 1.5}, true}}) {
    const int64_t width = (c.heads + 2 * c.kv_heads) * c.head_dim;
    at::Tensor qkv = at::sin(at::arange(400 * width, at::kFloat) * 12.9898f)
                         .mul(2)
                         .view({400, width})
                         .requires_grad_();
    const at::Tensor dy =
        at::cos(at::arange(400 * c.heads * c.head_dim, at::kFloat) * 7.77f).view({400, -1});
    at::Tensor wide = qkv.detach().to(at::kDouble).requires_grad_();
    parallel::Parameter sinks;
    at::Tensor wide_sinks;
    ScoreOptions options = c.options;
    if (c.with_sinks) {
      sinks.value = at::linspace(-1, 2, c.heads);
      sinks.gradient = at::ones({c.heads});  // is added to
      wide_sinks = sinks.value.to(at::kDouble).requires_grad_();
      options.sinks = &sinks;
    }
    const at::Tensor expected = Definition(wide, c, cuts, wide_sinks);
    (expected * dy).sum().backward();
    Packing packing;
    packing.boundaries = cuts;
    const at::Tensor y = PackedAttention(qkv, {c.heads, c.kv_heads, c.head_dim}, packing, options);
    (y * dy).sum().backward();
    EXPECT_LT((y - expected).abs().max().item<double>(), 1e-5);
    EXPECT_LT((qkv.grad() - wide.grad()).abs().max().item<double>(), 5e-5);
    if (!c.with_sinks) continue;
    EXPECT_LT((sinks.gradient - 1 - wide_sinks.grad()).abs().max().item<double>(), 2e-4);
  }
}

// The last tokens behind what is there: what generation on a device computes.
TEST(ExactAttention, ContinuesBehindWhatIsThere) {
  const ScoreOptions options{.window = 20, .softcap = 3};
  const AttentionShape shape{4, 2, 8};
  const at::Tensor q = at::sin(at::arange(4 * 200 * 8, at::kFloat) * 0.37f).view({1, 4, 200, 8});
  const at::Tensor k = at::cos(at::arange(2 * 200 * 8, at::kFloat) * 0.91f).view({1, 2, 200, 8});
  const at::Tensor v = at::sin(at::arange(2 * 200 * 8, at::kFloat) * 1.7f).view({1, 2, 200, 8});
  const at::Tensor whole = ExactAttend(q, k, v, 0, options, shape);
  const at::Tensor last = ExactAttend(q.narrow(2, 170, 30), k, v, 170, options, shape);
  EXPECT_LT((whole.narrow(2, 170, 30) - last).abs().max().item<double>(), 1e-6);
}

}  // namespace
}  // namespace keel::model
