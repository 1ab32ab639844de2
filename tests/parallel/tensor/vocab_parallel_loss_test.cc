// The loss over a split vocabulary, and its gradients, against stock PyTorch's cross-entropy in
// fp64.

#include "parallel/tensor/vocab_parallel_loss.h"

#include <gtest/gtest.h>

#include <algorithm>

#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

constexpr int64_t kLossVocab = 67;  // divides by neither 2 nor 3
constexpr int64_t kLossHidden = 8;
constexpr int64_t kLossTokens = 24;
constexpr double kScale = 0.125;

// The whole problem in fp32, and its answer in fp64.
struct WholeLoss {
  at::Tensor hidden, weight, bias, targets;
  at::Tensor loss, logits, dhidden, dweight, dbias;
  explicit WholeLoss(bool biased) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(3);
    hidden = at::randn({kLossTokens, kLossHidden}, generator) * 3;
    weight = at::randn({kLossVocab, kLossHidden}, generator);
    bias = at::randn({kLossVocab}, generator) * (biased ? 2 : 0);
    targets = at::randint(kLossVocab, {kLossTokens}, generator, at::kLong);
    targets[0] = kLossVocab - 1;
    targets.slice(0, 3, kLossTokens, 5).fill_(kIgnoreTarget);
    at::Tensor h = hidden.to(at::kDouble).requires_grad_();
    at::Tensor w = weight.to(at::kDouble).requires_grad_();
    at::Tensor b = bias.to(at::kDouble).requires_grad_();
    logits = at::matmul(h, w.t()) + b;
    loss = at::cross_entropy_loss(logits, targets, {}, at::Reduction::Sum, kIgnoreTarget) * kScale;
    loss.backward();
    dhidden = h.grad();
    dweight = w.grad();
    dbias = b.grad();
  }
};

struct Case {
  int tp;
  bool sequence_parallel;
  int64_t chunk_bytes;
  bool biased = false;
};

class VocabParallelLossTest : public ::testing::TestWithParam<Case> {};

TEST_P(VocabParallelLossTest, EqualsCrossEntropy) {
  const Case c = GetParam();
  const WholeLoss whole(c.biased);
  keel::testing::RunRanks(c.tp, 1, 1, [&](ParallelContext& context) {
    const int rank = context.rank();
    const int64_t rows = VocabRowsPerRank(kLossVocab, c.tp);
    const int64_t valid = std::min(rows, kLossVocab - rank * rows);
    Parameter weight;
    weight.shape = {rows, kLossHidden};
    weight.value = at::full({rows, kLossHidden}, 100.0);  // padding must take no part
    weight.value.narrow(0, 0, valid).copy_(whole.weight.narrow(0, rank * rows, valid));
    weight.gradient = at::ones({rows, kLossHidden});  // of earlier micro-batches
    Parameter bias;
    bias.shape = {rows};
    bias.value = at::full({rows}, 100.0);
    bias.value.narrow(0, 0, valid).copy_(whole.bias.narrow(0, rank * rows, valid));
    bias.gradient = at::ones({rows});
    const VocabParallelHead head{{&context.tp(), c.sequence_parallel},
                                 &weight,
                                 c.biased ? &bias : nullptr,
                                 kLossVocab,
                                 c.chunk_bytes};
    const int64_t part = c.sequence_parallel ? kLossTokens / c.tp : kLossTokens;
    const int64_t first = c.sequence_parallel ? rank * part : 0;
    at::Tensor hidden = whole.hidden.narrow(0, first, part).clone().requires_grad_();
    {
      // Scored without gradients, it is the same, and nothing is added to the weight's.
      const at::NoGradGuard no_grad;
      const double loss = VocabParallelLoss(head, hidden, whole.targets, kScale).item<double>();
      EXPECT_NEAR(loss, whole.loss.item<double>(), 1e-5 * whole.loss.item<double>());
      EXPECT_TRUE(at::equal(weight.gradient, at::ones_like(weight.gradient)));
      EXPECT_TRUE(at::allclose(GatheredLogits(head, hidden).to(at::kDouble), whole.logits.detach(),
                               1e-4, 1e-4));
    }
    const at::Tensor loss = VocabParallelLoss(head, hidden, whole.targets, kScale);
    EXPECT_NEAR(loss.item<double>(), whole.loss.item<double>(), 1e-5 * whole.loss.item<double>());
    loss.backward();
    EXPECT_TRUE(at::allclose(hidden.grad().to(at::kDouble), whole.dhidden.narrow(0, first, part),
                             1e-4, 1e-5));
    at::Tensor dweight = at::zeros({rows, kLossHidden}, at::kDouble);
    dweight.narrow(0, 0, valid).copy_(whole.dweight.narrow(0, rank * rows, valid));
    EXPECT_TRUE(at::allclose((weight.gradient - 1).to(at::kDouble), dweight, 1e-4, 1e-5));
    at::Tensor dbias = at::zeros({rows}, at::kDouble);
    if (c.biased) dbias.narrow(0, 0, valid).copy_(whole.dbias.narrow(0, rank * rows, valid));
    EXPECT_TRUE(at::allclose((bias.gradient - 1).to(at::kDouble), dbias, 1e-4, 1e-5));

    // Where no target counts, the loss is 0 and so are all gradients.
    weight.gradient.zero_();
    at::Tensor nothing = hidden.detach().clone().requires_grad_();
    const at::Tensor zero =
        VocabParallelLoss(head, nothing, at::full_like(whole.targets, kIgnoreTarget), kScale);
    EXPECT_EQ(zero.item<double>(), 0.0);
    zero.backward();
    EXPECT_EQ(nothing.grad().abs().max().item<double>(), 0.0);
    EXPECT_EQ(weight.gradient.abs().max().item<double>(), 0.0);
  });
}

INSTANTIATE_TEST_SUITE_P(Splits, VocabParallelLossTest,
                         ::testing::Values(Case{1, false, 1 << 20}, Case{1, false, 2000},
                                           Case{2, false, 1 << 20}, Case{2, true, 2000},
                                           Case{3, false, 300}, Case{3, true, 1 << 20},
                                           Case{1, false, 2000, true}, Case{2, true, 2000, true},
                                           Case{3, false, 1 << 20, true}));

}  // namespace
}  // namespace keel::parallel
