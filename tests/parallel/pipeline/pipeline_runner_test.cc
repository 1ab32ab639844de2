// A chain of layers over stages, against the same chain in one piece by stock autograd.

#include "parallel/pipeline/pipeline_runner.h"

#include <gtest/gtest.h>

#include <vector>

#include "tests/support/ranks.h"

namespace keel::parallel {
namespace {

constexpr int64_t kWidth = 5;

at::Tensor WeightOf(int stage) {
  return (at::arange(kWidth * kWidth, at::kDouble) * (stage + 2)).sin().view({kWidth, kWidth});
}
// Micro-batches differ in length.
at::Tensor InputOf(int microbatch) {
  return (at::arange((2 + microbatch) * kWidth, at::kDouble) * (microbatch + 1))
      .cos()
      .view({2 + microbatch, kWidth});
}
at::Tensor LossOf(int microbatch, const at::Tensor& x) { return (x * (microbatch + 3)).sum(); }
at::Tensor StageOf(const at::Tensor& weight, const at::Tensor& x) {
  return at::tanh(at::matmul(x, weight));
}

struct Whole {
  double loss = 0;
  std::vector<at::Tensor> gradients;  // by stage
};
Whole InOnePiece(int stages, int microbatches) {
  std::vector<at::Tensor> weights;
  for (int s = 0; s < stages; ++s) weights.push_back(WeightOf(s).requires_grad_());
  Whole whole;
  for (int m = 0; m < microbatches; ++m) {
    at::Tensor x = InputOf(m);
    for (const at::Tensor& weight : weights) x = StageOf(weight, x);
    const at::Tensor loss = LossOf(m, x);
    loss.backward();
    whole.loss += loss.item<double>();
  }
  for (const at::Tensor& weight : weights) whole.gradients.push_back(weight.grad());
  return whole;
}

TEST(PipelineRunner, StagesComputeWhatTheChainDoes) {
  for (int stages = 1; stages <= 4; ++stages) {
    for (const int microbatches : {1, 2, 3, 6}) {
      const Whole whole = InOnePiece(stages, microbatches);
      keel::testing::RunRanks(1, 1, stages, [&](ParallelContext& context) {
        const int stage = context.pp_rank();
        const at::Tensor weight = WeightOf(stage).requires_grad_();
        int backwards = 0;  // begun
        int last_backwards = 0;
        StageCallbacks callbacks;
        callbacks.activation_shape = [](int m) -> std::vector<int64_t> { return {2 + m, kWidth}; };
        callbacks.forward = [&](int m, const at::Tensor& input) {
          EXPECT_EQ(input.defined(), stage > 0);
          const at::Tensor y = StageOf(weight, stage == 0 ? InputOf(m) : input);
          if (y.requires_grad()) y.register_hook([&](const at::Tensor&) { ++backwards; });
          return stage == stages - 1 ? LossOf(m, y) : y;
        };
        callbacks.before_last_backward = [&] {
          EXPECT_EQ(backwards, microbatches - 1);
          ++last_backwards;
        };
        PipelineRunner runner(context.pp_forward(), context.pp_backward(),
                              at::TensorOptions().dtype(at::kDouble));
        const at::Tensor scored = runner.Evaluate(microbatches, callbacks);
        EXPECT_FALSE(weight.grad().defined()) << "a forward alone leaves no gradients";
        EXPECT_EQ(last_backwards, 0);
        const at::Tensor loss = runner.Train(microbatches, callbacks);
        EXPECT_EQ(backwards, microbatches);
        EXPECT_EQ(last_backwards, 1);
        EXPECT_EQ(loss.defined(), stage == stages - 1);
        EXPECT_EQ(scored.defined(), stage == stages - 1);
        if (loss.defined()) {
          EXPECT_NEAR(loss.item<double>(), whole.loss, 1e-12);
          EXPECT_NEAR(scored.item<double>(), whole.loss, 1e-12);
        }
        EXPECT_TRUE(
            at::allclose(weight.grad(), whole.gradients[static_cast<size_t>(stage)], 1e-10, 1e-12))
            << "stage " << stage << " of " << stages << ", " << microbatches << " micro-batches";
      });
    }
  }
}

}  // namespace
}  // namespace keel::parallel
