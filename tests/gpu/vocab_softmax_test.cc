// The kernels of log-probabilities, cross entropy and entropy against autograd in fp64.

#include "gpu/vocab_softmax.h"

#include <algorithm>

#include "tests/gpu/bodies.h"

namespace keel::gpu {
namespace {

constexpr float kTemperature = 0.8f;

at::Tensor StatisticsOf(const KernelTable& table, const at::Tensor& logits, int64_t columns,
                        const at::Tensor& targets, bool entropy) {
  at::Tensor out = at::full({logits.size(0), entropy ? 4 : 3}, NAN);
  table.token_statistics({parallel::ElementOf(logits), logits.size(0), columns, logits.size(1),
                          logits.const_data_ptr(), targets.const_data_ptr<int64_t>(), kTemperature,
                          entropy, out.data_ptr<float>()},
                         nullptr);
  return out;
}

struct SoftmaxCase {
  int64_t rows, columns, stride;
};

// Rows with padding behind them, of lengths that fill packs and that do not, for few and all lanes.
constexpr SoftmaxCase kSoftmaxCases[] = {
    {5, 24, 24}, {3, 37, 40}, {2, 5000, 5008}, {4, 1001, 1001}};

TEST(VocabSoftmaxKernel, StatisticsAndGradientsAreThoseOfTheDistribution) {
  for (const SoftmaxCase& c : kSoftmaxCases) {
    for (const at::ScalarType type : kTypes) {
      const at::Tensor logits = Draw(1, {c.rows, c.stride}, type) * 5;
      at::Tensor targets = at::arange(c.rows, at::kLong) * 7 + 2;
      targets[0] = -100;       // of no token
      targets[1] = c.columns;  // of another rank
      const at::Tensor here = targets.ge(0).logical_and(targets.lt(c.columns));
      at::Tensor x64 = Wide(logits);
      const at::Tensor valid = x64.narrow(1, 0, c.columns);
      const at::Tensor log_p = at::log_softmax(valid / static_cast<double>(kTemperature), 1);
      const at::Tensor entropy = -(log_p.exp() * log_p).sum(1);
      const at::Tensor index = targets.masked_fill(here.logical_not(), 0).unsqueeze(1);
      const at::Tensor of_log_prob = Draw(2, {c.rows}), of_entropy = Draw(3, {c.rows});
      // A target of another rank adds nothing here but the share of the others.
      const at::Tensor log_prob =
          at::where(here, log_p.gather(1, index).squeeze(1),
                    -at::logsumexp(valid / static_cast<double>(kTemperature), {1}));
      ((log_prob * of_log_prob).sum() + (entropy * of_entropy).sum()).backward();

      const auto found = InBothOrders([&](const KernelTable& table) {
        const at::Tensor s = StatisticsOf(table, logits, c.columns, targets, true);
        const at::Tensor log_sum = s.select(1, 1).log().contiguous();
        const at::Tensor maximum = s.select(1, 0).contiguous();
        const at::Tensor own_entropy = (log_sum - s.select(1, 3) / s.select(1, 1)).contiguous();
        at::Tensor gradient = logits.clone();
        TokenGradient args;
        args.element = parallel::ElementOf(logits);
        args.rows = c.rows;
        args.columns = c.columns;
        args.stride = c.stride;
        args.logits = gradient.data_ptr();
        args.targets = targets.const_data_ptr<int64_t>();
        args.temperature = kTemperature;
        args.maximum = maximum.const_data_ptr<float>();
        args.log_sum = log_sum.const_data_ptr<float>();
        args.log_prob_gradient = of_log_prob.const_data_ptr<float>();
        args.entropy = own_entropy.const_data_ptr<float>();
        args.entropy_gradient = of_entropy.const_data_ptr<float>();
        table.token_gradient(args, nullptr);
        return std::vector<at::Tensor>{s, log_sum, own_entropy, gradient,
                                       StatisticsOf(table, logits, c.columns, targets, false)};
      });
      const at::Tensor largest = std::get<0>(valid.max(1));
      EXPECT_TRUE(at::equal(found[0].select(1, 0).to(at::kDouble), largest));
      EXPECT_TRUE(at::equal(found[0].select(1, 2).to(at::kDouble),
                            valid.gather(1, index).squeeze(1) * here));
      EXPECT_TRUE(at::equal(found[4], found[0].narrow(1, 0, 3)));
      const at::Tensor log_sum64 =
          at::logsumexp((valid - largest.unsqueeze(1)) / static_cast<double>(kTemperature), {1});
      ExpectClose(found[1], log_sum64, "log sum");
      ExpectClose(found[2], entropy, "entropy", 4e-6);
      ExpectClose(found[3], x64.grad(), "gradient", 1e-5);
    }
  }
}

// A part whose logits are all -inf weighs nothing, and a rank without columns says so.
TEST(VocabSoftmaxKernel, WhatIsNotThereWeighsNothing) {
  at::Tensor logits = at::full({2, 300}, -INFINITY);
  logits[0][257] = 2;
  logits[0][3] = 2;
  const at::Tensor targets = at::tensor({257, 0}, at::kLong);
  const auto found = InBothOrders([&](const KernelTable& table) {
    return std::vector<at::Tensor>{StatisticsOf(table, logits, 300, targets, false),
                                   StatisticsOf(table, logits, 0, targets, false)};
  });
  EXPECT_EQ(found[0][0][0].item<float>(), 2);
  EXPECT_EQ(found[0][0][1].item<float>(), 2);
  EXPECT_EQ(found[0][0][2].item<float>(), 2);
  for (const at::Tensor& empty : {found[0][1], found[1][0]}) {
    EXPECT_EQ(empty[0].item<float>(), -INFINITY);
    EXPECT_EQ(empty[1].item<float>(), 0);
  }
}

// A logit that is no number makes none of the row's sum, wherever it stands: at the begin of a
// lane's part, or among others that are -inf.
TEST(VocabSoftmaxKernel, WhatIsNoNumberIsNotPassedOver) {
  for (const int64_t columns : {24, 37, 300, 1001}) {
    for (const int64_t at : {int64_t{0}, int64_t{5}, columns - 1}) {
      at::Tensor logits = Draw(4, {3, columns});
      logits[0][at] = NAN;
      logits[1].fill_(-INFINITY);
      logits[1][at] = NAN;
      logits[2].narrow(0, at / 8 * 8, std::min<int64_t>(8, columns - at / 8 * 8)).fill_(NAN);
      const auto found = InBothOrders([&](const KernelTable& table) {
        return std::vector<at::Tensor>{
            StatisticsOf(table, logits, columns, at::zeros({3}, at::kLong), true)
                .select(1, 1)
                .isnan()};
      });
      EXPECT_TRUE(found[0].all().item<bool>())
          << "at " << at << " of " << columns << ": " << found[0];
    }
  }
}

}  // namespace
}  // namespace keel::gpu
