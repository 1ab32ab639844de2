#include "model/ops/router.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <set>
#include <utility>
#include <vector>

namespace keel::model {
namespace {

at::Tensor Logits() {
  return at::tensor({1.0, 3.0, 2.0, 0.0, -1.0, 0.5, 0.25, 4.0}, at::kFloat).view({2, 4});
}

TEST(Router, TheLikeliestAreChosenWithTheirProbabilities) {
  const Routing routing = Route(Logits(), {}, {.experts = 4, .top_k = 2, .width = 8});
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({1, 2, 3, 1}, at::kLong).view({2, 2})));
  EXPECT_TRUE(at::allclose(routing.probs, at::softmax(Logits(), 1)));
  EXPECT_TRUE(at::equal(routing.weights, routing.probs.gather(1, routing.experts)));
}

TEST(Router, RenormalizedWeightsAddUpToOne) {
  const Routing routing =
      Route(Logits(), {}, {.experts = 4, .top_k = 3, .width = 8, .renormalize = true});
  EXPECT_TRUE(at::allclose(routing.weights.sum(1), at::ones({2})));
  const at::Tensor chosen = routing.probs.gather(1, routing.experts);
  EXPECT_TRUE(at::allclose(routing.weights, chosen / chosen.sum(1, true)));
}

// As generation and training want it: neither the other rows nor the dtype of the logits matter.
TEST(Router, ARowStandsForItself) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(3);
  const at::Tensor logits = at::randn({33, 24}, generator).to(at::kBFloat16);
  const MoeSpec spec = {.experts = 24, .top_k = 5, .width = 8, .renormalize = true};
  const Routing all = Route(logits, {}, spec);
  EXPECT_EQ(all.weights.scalar_type(), at::kFloat);
  for (int64_t row = 0; row < 33; ++row) {
    const Routing one = Route(logits.narrow(0, row, 1), {}, spec);
    EXPECT_TRUE(at::equal(one.weights[0], all.weights[row]));
    EXPECT_TRUE(at::equal(one.experts[0], all.experts[row]));
  }
}

// Sigmoids, a bias and groups, against the same by loops over doubles.
TEST(Router, TheBiasChoosesAndTheScoresCount) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(5);
  const int64_t experts = 12;
  const at::Tensor logits = at::randn({41, experts}, generator);
  const at::Tensor bias = at::randn({experts}, generator);
  int64_t moved = 0;
  for (const auto& [groups, top_groups] :
       std::vector<std::pair<int64_t, int64_t>>{{1, 1}, {3, 1}, {4, 2}, {6, 6}}) {
    const MoeSpec spec = {.experts = experts,
                          .top_k = 3,
                          .width = 8,
                          .score = RouterScore::kSigmoid,
                          .choice_bias = true,
                          .groups = groups,
                          .top_groups = top_groups,
                          .renormalize = true,
                          .scale = 2.5};
    const Routing routing = Route(logits, bias, spec);
    const Routing unbiased = Route(logits, at::zeros({experts}), spec);
    for (int64_t row = 0; row < logits.size(0); ++row) {
      std::vector<double> scores;
      std::vector<std::pair<double, int64_t>> order;
      for (int64_t e = 0; e < experts; ++e) {
        scores.push_back(1 / (1 + std::exp(-logits[row][e].item<double>())));
        order.emplace_back(-(scores.back() + bias[e].item<double>()), e);
      }
      // Groups by their two best.
      const int64_t each = experts / groups;
      std::vector<std::pair<double, int64_t>> best;
      for (int64_t g = 0; g < groups; ++g) {
        std::vector<double> of_group;
        for (int64_t e = g * each; e < (g + 1) * each; ++e)
          of_group.push_back(order[static_cast<size_t>(e)].first);
        std::sort(of_group.begin(), of_group.end());
        best.emplace_back(of_group[0] + of_group[1], g);
      }
      std::sort(best.begin(), best.end());
      std::set<int64_t> taken;
      for (int64_t g = 0; g < top_groups; ++g) taken.insert(best[static_cast<size_t>(g)].second);
      std::erase_if(order, [&](const auto& one) { return !taken.contains(one.second / each); });
      std::sort(order.begin(), order.end());
      double sum = 0;
      for (int64_t k = 0; k < spec.top_k; ++k)
        sum += scores[static_cast<size_t>(order[static_cast<size_t>(k)].second)];
      for (int64_t k = 0; k < spec.top_k; ++k) {
        const int64_t expert = order[static_cast<size_t>(k)].second;
        EXPECT_EQ(routing.experts[row][k].item<int64_t>(), expert);
        EXPECT_NEAR(routing.weights[row][k].item<double>(),
                    2.5 * scores[static_cast<size_t>(expert)] / sum, 1e-6);
      }
      moved += !at::equal(routing.experts[row], unbiased.experts[row]);
      const Routing one = Route(logits.narrow(0, row, 1), bias, spec);
      EXPECT_TRUE(at::equal(one.weights[0], routing.weights[row]));
    }
  }
  EXPECT_GT(moved, 40);
}

// DeepSeek-V2's: softmaxes, no bias, and groups by the best of each.
TEST(Router, GroupsByTheirBestExpert) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(6);
  const at::Tensor logits = at::randn({41, 12}, generator);
  const MoeSpec spec = {.experts = 12,
                        .top_k = 3,
                        .width = 8,
                        .groups = 4,
                        .top_groups = 2,
                        .group_by_best = true,
                        .scale = 1.5};
  const Routing routing = Route(logits, {}, spec);
  int64_t moved = 0;
  for (int64_t row = 0; row < logits.size(0); ++row) {
    const at::Tensor probs = at::softmax(logits[row].to(at::kDouble), 0);
    const at::Tensor of_group = std::get<0>(probs.view({4, 3}).max(1));
    const at::Tensor taken = std::get<1>(at::topk(of_group, 2));
    at::Tensor left = at::zeros({4, 3}, at::kDouble);
    for (int64_t g = 0; g < 2; ++g)
      left[taken[g].item<int64_t>()] = probs.view({4, 3})[taken[g].item<int64_t>()];
    const auto [weights, experts] = at::topk(left.view({12}), 3);
    EXPECT_TRUE(at::equal(routing.experts[row], experts));
    EXPECT_TRUE(at::allclose(routing.weights[row].to(at::kDouble), weights * 1.5, 1e-6, 1e-7));
    moved += !at::equal(experts, std::get<1>(at::topk(probs, 3)));
    const Routing one = Route(logits.narrow(0, row, 1), {}, spec);
    EXPECT_TRUE(at::equal(one.weights[0], routing.weights[row]));
  }
  EXPECT_GT(moved, 5);
  EXPECT_TRUE(routing.biased);
}

// Nothing is differentiated by the choice: the gradient is that of the chosen scores.
TEST(Router, GradientsOfSigmoidScores) {
  const MoeSpec spec = {
      .experts = 4, .top_k = 2, .width = 8, .score = RouterScore::kSigmoid, .choice_bias = true};
  const at::Tensor logits = Logits().requires_grad_();
  const Routing routing = Route(logits, at::tensor({9.0F, 0.0F, 0.0F, 0.0F}), spec);
  routing.weights.sum().backward();
  const at::Tensor sigmoid = at::sigmoid(Logits());
  const at::Tensor chosen = at::zeros({2, 4}).scatter_(1, routing.experts, 1.0);
  EXPECT_TRUE(at::equal(chosen.select(1, 0), at::ones({2})));
  EXPECT_TRUE(at::allclose(logits.grad(), chosen * sigmoid * (1 - sigmoid)));
}

}  // namespace
}  // namespace keel::model
