#include "model/ops/router_load.h"

#include <gtest/gtest.h>
#include <torch/csrc/autograd/autograd.h>

namespace keel::model {
namespace {

constexpr MoeSpec kSpec = {.experts = 6, .top_k = 2, .width = 8};
constexpr int64_t kRows = 10;

at::Tensor Random(uint64_t seed, at::IntArrayRef shape) {
  at::Generator generator = at::globalContext().defaultGenerator(at::kCPU).clone();
  generator.set_current_seed(seed);
  return at::randn(shape, generator);
}

// Equations 4 to 6 of Switch Transformer over the tokens of all layers.
at::Tensor FromItsDefinition(const std::vector<at::Tensor>& layers, const at::Tensor& counted) {
  const at::Tensor probs = at::softmax(at::cat(layers), 1);
  const at::Tensor chosen =
      at::one_hot(std::get<1>(at::topk(probs, kSpec.top_k, 1)), kSpec.experts).sum(1);
  const at::Tensor rows = at::cat(std::vector<at::Tensor>(layers.size(), counted)).nonzero();
  const auto mean = [&](const at::Tensor& x) {
    return x.index_select(0, rows.view({-1})).to(at::kFloat).mean(0);
  };
  return (mean(chosen) * mean(probs)).sum() * kSpec.experts;
}

TEST(RouterLoad, TheLossAndItsGradientEqualTheirDefinition) {
  std::vector<at::Tensor> found, expected;
  for (uint64_t layer = 0; layer < 3; ++layer) {
    found.push_back(Random(layer, {kRows, kSpec.experts}).requires_grad_());
    expected.push_back(found.back().detach().clone().requires_grad_());
  }
  at::Tensor counted = at::ones({kRows});
  counted.narrow(0, 3, 4).zero_();
  for (const bool all : {true, false}) {
    const at::Tensor mask = all ? at::ones({kRows}) : counted;
    RouterLoad load = RouterLoad::Zero(kSpec, at::kCPU);
    for (const at::Tensor& logits : found)
      load = load.With(Route(logits, {}, kSpec), all ? at::Tensor() : counted, true);
    const at::Tensor loss = load.BalanceLoss();
    const at::Tensor definition = FromItsDefinition(expected, mask);
    EXPECT_NEAR(loss.item<float>(), definition.item<float>(), 1e-6);
    loss.backward();
    definition.backward();
    for (size_t layer = 0; layer < found.size(); ++layer)
      EXPECT_TRUE(at::allclose(found[layer].grad(), expected[layer].grad(), 1e-5, 1e-7));
  }
}

TEST(RouterLoad, OneRankAloneTakesTheGradient) {
  const at::Tensor logits = Random(1, {kRows, kSpec.experts}).requires_grad_();
  const RouterLoad other =
      RouterLoad::Zero(kSpec, at::kCPU).With(Route(logits, {}, kSpec), {}, false);
  EXPECT_FALSE(other.BalanceLoss().requires_grad());
}

TEST(RouterLoad, TheBusiestShareIsOfTheWorstLayer) {
  Routing even, uneven;
  even.experts = at::arange(12, at::kLong).view({6, 2}).remainder(6);
  uneven.experts = at::tensor({0, 1, 0, 2, 0, 3}, at::kLong).view({3, 2}).repeat({2, 1});
  even.probs = uneven.probs = at::full({6, 6}, 1.0 / 6);
  const RouterLoad none = RouterLoad::Zero(kSpec, at::kCPU);
  EXPECT_FLOAT_EQ(none.With(even, {}, false).BusiestShare().item<float>(), 1.0F / 6);
  for (const bool first : {true, false}) {
    const RouterLoad load =
        none.With(first ? uneven : even, {}, false).With(first ? even : uneven, {}, false);
    EXPECT_FLOAT_EQ(load.BusiestShare().item<float>(), 0.5F);
  }
}

TEST(RouterLoad, NothingThatCountsIsNoLoss) {
  const RouterLoad load =
      RouterLoad::Zero(kSpec, at::kCPU)
          .With(Route(Random(2, {4, kSpec.experts}), {}, kSpec), at::zeros({4}), true);
  EXPECT_EQ(load.BalanceLoss().item<float>(), 0);
  EXPECT_EQ(load.BusiestShare().item<float>(), 0);
}

TEST(RouterLoad, TokensOfSequencesWithSomethingToLearnCount) {
  Packing packing;
  packing.boundaries = {0, 3, 5, 6};
  const at::Tensor learnt = at::tensor({0, 1, 0, 0, 0, 1}, at::kInt).to(at::kBool);
  EXPECT_TRUE(
      at::equal(CountedTokens(learnt, packing), at::tensor({1, 1, 1, 0, 0, 1}, at::kFloat)));
  EXPECT_FALSE(CountedTokens({}, packing).defined());
}

// Bit for bit in both directions, whatever bf16 would make of the halves of a number.
TEST(RouterLoad, IsCarriedBehindActivations) {
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    for (const int64_t columns : {4, 64}) {
      at::Tensor x = Random(3, {5, columns}).to(dtype).requires_grad_();
      at::Tensor sums = (Random(4, {2 * kSpec.experts + 2}) * 1e3).requires_grad_();
      const at::Tensor joined = AppendLoad(x, {sums});
      ASSERT_EQ(joined.size(0), 5 + CarriedRows(kSpec, columns, dtype));
      const at::Tensor sent = joined.detach().clone().requires_grad_();
      const auto [y, load] = SplitLoad(sent, kSpec);
      EXPECT_TRUE(at::equal(y, x));
      EXPECT_TRUE(at::equal(load.sums, sums));
      const at::Tensor dx = Random(5, {5, columns}).to(dtype);
      const at::Tensor dsums = Random(6, {2 * kSpec.experts + 2});
      torch::autograd::backward({y, load.sums}, {dx, dsums});
      joined.backward(sent.grad());
      EXPECT_TRUE(at::equal(x.grad(), dx));
      EXPECT_TRUE(at::equal(sums.grad(), dsums));
    }
  }
  EXPECT_EQ(CarriedRows({}, 64, at::kFloat), 0);
}

}  // namespace
}  // namespace keel::model
