// Log-probabilities, entropies and their gradients against stock PyTorch on the whole vocabulary.

#include "parallel/tensor/vocab_parallel_log_probs.h"

#include <gtest/gtest.h>

#include "parallel/tensor/vocab_parallel_loss.h"
#include "parallel/tensor/vocab_tensor_softmax.h"
#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

constexpr int64_t kVocab = 131;  // does not divide by 2 or 3
constexpr int64_t kHidden = 16;
constexpr int64_t kTokens = 40;

// The whole problem, the same on every rank.
struct Problem {
  at::Tensor hidden, weight, targets, log_prob_gradient, entropy_gradient;
  explicit Problem(at::ScalarType dtype) {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(11);
    const auto random = [&](at::IntArrayRef shape) { return at::randn(shape, generator); };
    hidden = random({kTokens, kHidden}).mul(2).to(dtype);
    weight = random({kVocab, kHidden}).to(dtype);
    targets = at::randint(kVocab, {kTokens}, generator, at::kLong);
    targets.slice(0, 0, kTokens, 7).fill_(kIgnoreTarget);
    targets[1] = 0;
    targets[2] = kVocab - 1;
    log_prob_gradient = random({kTokens});
    entropy_gradient = random({kTokens});
  }
};

struct Values {
  at::Tensor log_probs, entropy, log_sum_squares, dhidden, dweight;
};

// In fp64, from the definitions. softcap 0: none.
Values Stock(const Problem& problem, double temperature, double divisor = 1, double softcap = 0) {
  at::Tensor hidden = problem.hidden.to(at::kDouble).requires_grad_();
  at::Tensor weight = problem.weight.to(at::kDouble).requires_grad_();
  at::Tensor logits = at::mm(hidden, weight.t());
  if (problem.hidden.scalar_type() == at::kBFloat16) {
    // The product is stored in bf16: its rounding is part of the model.
    logits = logits + (logits.detach().to(at::kBFloat16).to(at::kDouble) - logits.detach());
  }
  logits = logits / divisor;
  if (softcap > 0) logits = softcap * at::tanh(logits / softcap);
  const at::Tensor log_p = at::log_softmax(logits / temperature, 1);
  const at::Tensor counted = problem.targets.ne(kIgnoreTarget);
  const at::Tensor index = problem.targets.masked_fill(counted.logical_not(), 0).unsqueeze(1);
  const at::Tensor log_probs = log_p.gather(1, index).squeeze(1) * counted;
  const at::Tensor entropy = -(log_p.exp() * log_p).sum(1) * counted;
  (log_probs * problem.log_prob_gradient + entropy * problem.entropy_gradient).sum().backward();
  const at::Tensor log_sum_squares = at::logsumexp(2 * log_p, 1) * counted;
  return {log_probs.detach(), entropy.detach(), log_sum_squares.detach(), hidden.grad(),
          weight.grad()};
}

struct Case {
  int tp;
  bool sequence_parallel;
  int64_t chunk_bytes;
  double temperature;
  at::ScalarType dtype;
  double divisor = 1;
  double softcap = 0;
};

class VocabParallelLogProbsTest : public ::testing::TestWithParam<Case> {};

TEST_P(VocabParallelLogProbsTest, EqualsStock) {
  const Case& c = GetParam();
  const Problem problem(c.dtype);
  const Values expected = Stock(problem, c.temperature, c.divisor, c.softcap);
  const double tolerance = c.dtype == at::kFloat ? 2e-5 : 3e-2;
  testing::RunRanks(c.tp, 1, 1, [&](ParallelContext& context) {
    const int rank = context.tp_rank();
    const int64_t rows = VocabRowsPerRank(kVocab, c.tp);
    Parameter weight;
    weight.shape = {rows, kHidden};
    weight.value = at::zeros({rows, kHidden}, c.dtype);
    const int64_t valid = std::min(rows, kVocab - rank * rows);
    weight.value.narrow(0, 0, valid).copy_(problem.weight.narrow(0, rank * rows, valid));
    weight.value.narrow(0, valid, rows - valid).fill_(100);  // padding must take no part
    weight.gradient = at::zeros({rows, kHidden});
    VocabParallelHead head{{&context.tp(), c.sequence_parallel},
                           &weight,
                           nullptr,
                           kVocab,
                           c.chunk_bytes,
                           c.divisor,
                           c.softcap};

    const int64_t part = c.sequence_parallel ? kTokens / c.tp : kTokens;
    const int64_t begin = c.sequence_parallel ? rank * part : 0;
    at::Tensor hidden = problem.hidden.narrow(0, begin, part).clone().requires_grad_();
    const TokenLogProbs out =
        VocabParallelLogProbs(head, hidden, problem.targets, c.temperature, true);
    EXPECT_TRUE(at::allclose(out.log_probs.to(at::kDouble), expected.log_probs, 0, tolerance));
    EXPECT_TRUE(at::allclose(out.entropy.to(at::kDouble), expected.entropy, 0, tolerance));
    {
      // Neither the entropy nor the gradient changes a bit of the log-probabilities.
      const at::NoGradGuard no_grad;
      const TokenLogProbs plain =
          VocabParallelLogProbs(head, hidden, problem.targets, c.temperature, false);
      EXPECT_TRUE(at::equal(plain.log_probs, out.log_probs));
      EXPECT_FALSE(plain.entropy.defined());
    }
    EXPECT_TRUE(at::allclose(
        VocabParallelLogSumSquares(head, hidden, problem.targets, c.temperature).to(at::kDouble),
        expected.log_sum_squares, 0, tolerance));
    (out.log_probs * problem.log_prob_gradient + out.entropy * problem.entropy_gradient)
        .sum()
        .backward();
    const double scale = expected.dhidden.abs().max().item<double>();
    EXPECT_TRUE(at::allclose(hidden.grad().to(at::kDouble), expected.dhidden.narrow(0, begin, part),
                             0, tolerance * scale));
    EXPECT_TRUE(at::allclose(weight.gradient.narrow(0, 0, valid).to(at::kDouble),
                             expected.dweight.narrow(0, rank * rows, valid), 0,
                             tolerance * expected.dweight.abs().max().item<double>()));
    EXPECT_TRUE(weight.gradient.narrow(0, valid, rows - valid).eq(0).all().item<bool>());
  });
}

constexpr int64_t kWhole = int64_t{1} << 30;
INSTANTIATE_TEST_SUITE_P(
    Layouts, VocabParallelLogProbsTest,
    ::testing::Values(Case{1, false, kWhole, 1, at::kFloat}, Case{1, false, 4096, 0.7, at::kFloat},
                      Case{2, false, kWhole, 1.3, at::kFloat}, Case{2, true, kWhole, 1, at::kFloat},
                      Case{2, true, 2000, 0.7, at::kFloat}, Case{3, false, 1, 1, at::kFloat},
                      Case{1, false, kWhole, 0.7, at::kBFloat16},
                      Case{2, true, 2000, 1, at::kBFloat16},
                      Case{1, false, kWhole, 1, at::kFloat, 2.5},
                      Case{2, true, 2000, 0.7, at::kFloat, 0.3},
                      Case{2, false, kWhole, 1, at::kFloat, 1, 3},
                      Case{2, false, 2000, 1.3, at::kFloat, 1.7, 4}));

TEST(VocabParallelLogProbsTest, EntropyAloneAndSecondBackward) {
  const Problem problem(at::kFloat);
  const Values expected = Stock(problem, 1);
  testing::RunRanks(1, 1, 1, [&](ParallelContext& context) {
    Parameter weight;
    weight.shape = {kVocab, kHidden};
    weight.value = problem.weight;
    weight.gradient = at::zeros({kVocab, kHidden});
    VocabParallelHead head{{&context.tp(), false}, &weight, nullptr, kVocab};
    at::Tensor hidden = problem.hidden.clone().requires_grad_();
    const TokenLogProbs out = VocabParallelLogProbs(head, hidden, problem.targets, 1, true);
    // The two losses one after the other: kept logits are used up by the first.
    (out.log_probs * problem.log_prob_gradient).sum().backward({}, /*retain_graph=*/true);
    (out.entropy * problem.entropy_gradient).sum().backward();
    EXPECT_TRUE(at::allclose(hidden.grad().to(at::kDouble), expected.dhidden, 0,
                             2e-5 * expected.dhidden.abs().max().item<double>()));
    EXPECT_THROW(VocabParallelLogProbs(head, hidden, problem.targets, 0, false), c10::Error);
  });
}

// Logits of up to 128, of which one all but decides: what is left of log p and of the entropy's
// gradient is no larger than the rounding of such a logit.
struct Certain {
  static constexpr int64_t kRows = 24;
  at::Tensor logits, targets;  // [kRows, kVocab]
  Certain() {
    at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
    generator.set_current_seed(5);
    logits = at::randn({kRows, kVocab}, generator).mul(2).add(100);
    targets = at::randint(kVocab, {kRows}, generator, at::kLong);
    // The likeliest is the target in every other row; how far above the rest, from 6 to 29.
    for (int64_t row = 0; row < kRows; ++row) {
      const int64_t top = row % 2 == 0 ? targets[row].item<int64_t>() : row;
      logits[row][top] = 128;
      logits[row][(top + 50) % kVocab] = 122.0 - static_cast<double>(row);
    }
  }
};

struct CertainValues {
  at::Tensor log_probs, entropy, of_log_probs, of_entropy;  // gradients with respect to the logits
};

CertainValues CertainInDouble(const Certain& problem, double temperature) {
  at::Tensor logits = problem.logits.to(at::kDouble).requires_grad_();
  const at::Tensor log_p = at::log_softmax(logits / temperature, 1);
  const at::Tensor log_probs = log_p.gather(1, problem.targets.unsqueeze(1)).squeeze(1);
  const at::Tensor entropy = -(log_p.exp() * log_p).sum(1);
  entropy.sum().backward({}, /*retain_graph=*/true);
  const at::Tensor of_entropy = logits.grad().clone();
  logits.mutable_grad().zero_();
  log_probs.sum().backward();
  return {log_probs.detach(), entropy.detach(), logits.grad(), of_entropy};
}

double Gap(const at::Tensor& found, const at::Tensor& expected) {
  return found.numel() == 0 ? 0 : (found.to(at::kDouble) - expected).abs().max().item<double>();
}

TEST(VocabParallelLogProbsTest, LargeLogitsLoseNoDigits) {
  const Certain problem;
  for (const int tp : {1, 2}) {
    for (const double temperature : {1.0, 0.7}) {
      const CertainValues expected = CertainInDouble(problem, temperature);
      testing::RunRanks(tp, 1, 1, [&](ParallelContext& context) {
        // The identity in front of the head: its product is the logits, its hidden gradient theirs.
        const int64_t rows = VocabRowsPerRank(kVocab, tp);
        const int64_t first = context.tp_rank() * rows;
        const int64_t valid = std::min(rows, kVocab - first);
        Parameter weight;
        weight.shape = {rows, kVocab};
        weight.value = at::zeros({rows, kVocab});
        weight.value.narrow(0, 0, valid).copy_(at::eye(kVocab).narrow(0, first, valid));
        weight.gradient = at::zeros({rows, kVocab});
        VocabParallelHead head{{&context.tp(), false}, &weight, nullptr, kVocab};
        at::Tensor hidden = problem.logits.clone().requires_grad_();
        TokenLogProbs out = VocabParallelLogProbs(head, hidden, problem.targets, temperature, true);
        EXPECT_LE(Gap(out.log_probs, expected.log_probs), 4e-6);  // of values down to -40
        EXPECT_LE(Gap(out.log_probs.slice(0, 0, Certain::kRows, 2),
                      expected.log_probs.slice(0, 0, Certain::kRows, 2)),
                  2e-7);
        EXPECT_LE(Gap(out.entropy, expected.entropy), 2e-7);
        out.entropy.sum().backward();
        EXPECT_LE(Gap(hidden.grad(), expected.of_entropy), 3e-7);
        if (temperature != 1) return;
        at::Tensor again = problem.logits.clone().requires_grad_();
        const at::Tensor loss = VocabParallelLoss(head, again, problem.targets, 1);
        loss.backward();
        EXPECT_NEAR(loss.item<double>(), -expected.log_probs.sum().item<double>(), 4e-5);
        EXPECT_LE(Gap(again.grad(), -expected.of_log_probs), 3e-7);
        // Rows whose target is certain: a loss of 1e-3 to 1e-13, not of the logits' rounding.
        at::Tensor certain = problem.logits.slice(0, 0, Certain::kRows, 2).clone();
        const at::NoGradGuard no_grad;
        const at::Tensor sure = VocabParallelLoss(
            head, certain, problem.targets.slice(0, 0, Certain::kRows, 2).contiguous(), 1);
        EXPECT_NEAR(sure.item<double>(),
                    -expected.log_probs.slice(0, 0, Certain::kRows, 2).sum().item<double>(), 1e-6);
      });
    }
  }
}

// What other devices compute, on a CPU: the definitions, and the kernels' numbers to rounding.
TEST(VocabParallelLogProbsTest, TensorsOnAnyDeviceGiveTheSame) {
  const Certain problem;
  for (const double temperature : {1.0, 0.7}) {
    const CertainValues expected = CertainInDouble(problem, temperature);
    const auto t = static_cast<float>(temperature);
    // Two parts of the vocabulary, and a third that is padding alone.
    const std::vector<std::pair<int64_t, int64_t>> parts = {{0, 70}, {70, 61}, {131, 0}};
    std::vector<at::Tensor> logits, statistics, targets;
    for (const auto& [first, columns] : parts) {
      logits.push_back(at::full({Certain::kRows, 72}, 1e4));
      logits.back().narrow(1, 0, columns).copy_(problem.logits.narrow(1, first, columns));
      targets.push_back(problem.targets - first);
      statistics.push_back(TensorTokenStatistics(logits.back(), targets.back(), columns, t, true));
      EXPECT_TRUE(at::equal(TensorTokenStatistics(logits.back(), targets.back(), columns, t, false),
                            statistics.back().narrow(1, 0, 3)));
    }
    const TokenSoftmax softmax = JoinTokenStatistics(at::stack(statistics), temperature);
    EXPECT_LE(Gap(softmax.LogProb(temperature), expected.log_probs), 4e-6);
    EXPECT_LE(Gap(softmax.entropy, expected.entropy), 2e-7);
    const at::Tensor one = at::ones({Certain::kRows});
    for (size_t i = 0; i < parts.size(); ++i) {
      const auto [first, columns] = parts[i];
      at::Tensor of_entropy = logits[i].clone(), of_log_probs = logits[i].clone();
      TensorTokenGradient(of_entropy, targets[i], columns, t, softmax, at::zeros_like(one), one);
      TensorTokenGradient(of_log_probs, targets[i], columns, t, softmax, one, {});
      EXPECT_LE(
          Gap(of_entropy.narrow(1, 0, columns), expected.of_entropy.narrow(1, first, columns)),
          3e-7);
      EXPECT_LE(
          Gap(of_log_probs.narrow(1, 0, columns), expected.of_log_probs.narrow(1, first, columns)),
          3e-7);
      for (const at::Tensor& made : {of_entropy, of_log_probs})
        EXPECT_TRUE(made.narrow(1, columns, 72 - columns).eq(0).all().item<bool>());
    }
  }
}

}  // namespace
}  // namespace keel::parallel
