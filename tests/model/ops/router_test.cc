#include "model/ops/router.h"

#include <gtest/gtest.h>

namespace keel::model {
namespace {

at::Tensor Logits() {
  return at::tensor({1.0, 3.0, 2.0, 0.0, -1.0, 0.5, 0.25, 4.0}, at::kFloat).view({2, 4});
}

TEST(Router, TheLikeliestAreChosenWithTheirProbabilities) {
  const Routing routing = Route(Logits(), {.experts = 4, .top_k = 2, .width = 8});
  EXPECT_TRUE(at::equal(routing.experts, at::tensor({1, 2, 3, 1}, at::kLong).view({2, 2})));
  EXPECT_TRUE(at::allclose(routing.probs, at::softmax(Logits(), 1)));
  EXPECT_TRUE(at::equal(routing.weights, routing.probs.gather(1, routing.experts)));
}

TEST(Router, RenormalizedWeightsAddUpToOne) {
  const Routing routing =
      Route(Logits(), {.experts = 4, .top_k = 3, .width = 8, .renormalize = true});
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
  const Routing all = Route(logits, spec);
  EXPECT_EQ(all.weights.scalar_type(), at::kFloat);
  for (int64_t row = 0; row < 33; ++row) {
    const Routing one = Route(logits.narrow(0, row, 1), spec);
    EXPECT_TRUE(at::equal(one.weights[0], all.weights[row]));
    EXPECT_TRUE(at::equal(one.experts[0], all.experts[row]));
  }
}

}  // namespace
}  // namespace keel::model
