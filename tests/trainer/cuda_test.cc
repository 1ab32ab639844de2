// Training on a GPU against the CPU. Skipped, loudly, where there is none.

#include <gtest/gtest.h>

#include "parallel/cuda_module.h"
#include "tests/support/ranks.h"
#include "trainer/train_engine.h"

namespace keel::trainer {
namespace {

TEST(CudaTest, AFewStepsEqualTheCpu) {
  const auto module = parallel::LoadCudaModule();
  const Result<int> count = module.ok() ? (*module)->DeviceCount() : Result<int>(module.status());
  if (!count.ok()) GTEST_SKIP() << "no usable GPU: " << count.status().message();
  (*module)->SetDevice(0);
  model::HfConfig config;
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 131;
  config.max_position_embeddings = 64;
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<double> losses[2];
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)}) {
      keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
        TrainEngineOptions options;
        options.dtype = dtype;
        options.device = device;
        TrainEngine engine(context, config, options);
        engine.Initialize(3);
        model::ModelBatch batch;
        batch.ids = at::arange(48, at::kLong).mul(7).remainder(131).to(device);
        batch.targets = batch.ids.roll(-1);
        batch.packing.positions =
            at::cat({at::arange(32, at::kInt), at::arange(16, at::kInt)}).to(device);
        batch.packing.boundaries = {0, 32, 48};
        for (int step = 1; step <= 5; ++step) {
          losses[device.is_cuda()].push_back(engine.Step({batch}, 48, 1e-3, step).loss);
        }
      });
    }
    ASSERT_EQ(losses[1].size(), 5u);
    const double tolerance = dtype == at::kFloat ? 1e-4 : 2e-2;
    for (size_t i = 0; i < 5; ++i)
      EXPECT_NEAR(losses[1][i], losses[0][i], tolerance * losses[0][i]);
  }
}

}  // namespace
}  // namespace keel::trainer
