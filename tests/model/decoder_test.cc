#include "model/decoder.h"

#include <ATen/Parallel.h>
#include <gtest/gtest.h>

#include "parallel/gradients/weight_store.h"
#include "parallel/groups/process_group.h"
#include "tests/support/tiny_training.h"

namespace keel::model {
namespace {

// A weight is a number of its place in the whole tensor: threads that share the rows draw the same.
TEST(DecoderTest, WeightsAreDrawnAlikeByAnyNumberOfThreads) {
  const auto group = parallel::MakeSingleGroup("tp");
  HfConfig config = keel::testing::TinyConfig(/*tied=*/false, Family::kLlama);
  config.hidden_size = 192;
  config.vocab_size = 1031;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    DecoderOptions options;
    options.dtype = dtype;
    std::vector<at::Tensor> drawn;
    for (const int threads : {1, 3, 8}) {
      at::set_num_threads(threads);
      Decoder decoder(config, {group.get(), false}, options);
      parallel::WeightStore weights(decoder.parameters(),
                                    parallel::WeightStoreOptions{dtype, at::kCPU});
      decoder.Initialize(7);
      drawn.push_back(weights.flat().clone());
    }
    at::set_num_threads(1);
    EXPECT_GT(drawn[0].to(at::kFloat).std().item<double>(), 0.05);
    EXPECT_TRUE(at::equal(drawn[0], drawn[1]));
    EXPECT_TRUE(at::equal(drawn[0], drawn[2]));
  }
}

struct Learnt {
  at::Tensor log_probs;
  std::vector<at::Tensor> gradients;
};

// Of three texts, one of them longer than the windows, and their gradients.
Learnt LearnOnce(Family family, parallel::Arithmetic arithmetic) {
  const auto group = parallel::MakeSingleGroup("tp");
  Decoder decoder(keel::testing::TinyConfig(/*tied=*/false, family),
                  {group.get(), false, arithmetic}, DecoderOptions{});
  parallel::WeightStore weights(decoder.parameters(),
                                parallel::WeightStoreOptions{at::kFloat, at::kCPU});
  decoder.Initialize(7);
  for (parallel::Parameter* p : decoder.parameters()) {
    p->gradient = at::zeros_like(p->value);
    p->value.set_requires_grad(true);
  }
  ModelBatch batch;
  batch.packing.boundaries = {0, 40, 43, 60};
  std::vector<at::Tensor> positions;
  for (size_t i = 0; i < batch.packing.sequences(); ++i)
    positions.push_back(at::arange(batch.packing.tokens(i), at::kInt));
  batch.packing.positions = at::cat(positions);
  batch.ids = at::arange(60, at::kLong).mul(7).remainder(decoder.config().vocab_size);
  batch.targets = at::arange(60, at::kLong).mul(11).remainder(decoder.config().vocab_size);
  const at::Tensor hidden = decoder.Forward({}, batch);
  const at::Tensor log_probs =
      decoder.LogProbsWithGradient(hidden, batch.targets, 0.7, /*with_entropy=*/false).log_probs;
  log_probs.sum().backward();
  Learnt learnt{log_probs.detach(), {}};
  for (const parallel::Parameter* p : decoder.parameters()) learnt.gradients.push_back(p->gradient);
  return learnt;
}

// Generation's bits in the forward change what is learnt by rounding alone.
TEST(DecoderTest, WhatIsLearntIsTheSameByGenerationsForward) {
  for (const Family family : {Family::kLlama, Family::kQwen3, Family::kGemma2, Family::kOlmo2,
                              Family::kQwen3Moe, Family::kQwen2Moe, Family::kQwen35,
                              Family::kGptNeox, Family::kCohere, Family::kGpt2, Family::kPhi}) {
    const Learnt fast = LearnOnce(family, parallel::Arithmetic::kTraining);
    const Learnt same = LearnOnce(family, parallel::Arithmetic::kBatchInvariant);
    EXPECT_FALSE(at::equal(fast.log_probs, same.log_probs));  // it is another forward
    EXPECT_LE((fast.log_probs - same.log_probs).abs().max().item<double>(), 1e-5);
    for (size_t i = 0; i < fast.gradients.size(); ++i) {
      const double size = fast.gradients[i].abs().max().item<double>();
      EXPECT_GT(size, 0) << i;
      EXPECT_LE((fast.gradients[i] - same.gradients[i]).abs().max().item<double>(), 5e-5 * size)
          << static_cast<int>(family) << ", parameter " << i;
    }
  }
}

}  // namespace
}  // namespace keel::model
