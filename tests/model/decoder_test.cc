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

}  // namespace
}  // namespace keel::model
