// Training on a GPU against the CPU. Skipped, loudly, where there is none.

#include <gtest/gtest.h>

#include <cmath>
#include <string>
#include <vector>

#include "parallel/groups/cuda_module.h"
#include "parallel/tensor/determinism.h"
#include "tests/support/ranks.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

// The module on GPU 0, or null with the reason, which ctest shows as skipped.
parallel::CudaModule* UsableModule(std::string& reason) {
  const auto module = parallel::LoadCudaModule();
  const Result<int> count = module.ok() ? (*module)->DeviceCount() : Result<int>(module.status());
  if (!count.ok()) {
    reason = "no usable GPU: " + count.status().message();
    return nullptr;
  }
  (*module)->SetDevice(0);
  return *module;
}

model::HfConfig SmallConfig(bool experts = false) {
  model::HfConfig config;
  if (experts) {
    config.family = model::Family::kMixtral;
    config.moe = {.experts = 5, .top_k = 2, .width = 40, .renormalize = true};
    config.output_router_logits = true;
    config.router_aux_loss_coef = 0.1;
  }
  config.hidden_size = 64;
  config.intermediate_size = 96;
  config.num_hidden_layers = 2;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 16;
  config.vocab_size = 131;
  config.max_position_embeddings = 64;
  return config;
}

model::ModelBatch BatchOn(at::Device device) {
  model::ModelBatch batch;
  batch.ids = at::arange(48, at::kLong).mul(7).remainder(131).to(device);
  batch.targets = batch.ids.roll(-1);
  batch.packing.positions =
      at::cat({at::arange(32, at::kInt), at::arange(16, at::kInt)}).to(device);
  batch.packing.boundaries = {0, 32, 48};
  return batch;
}

// As `keel doctor` asks, which has no tensors. The first case: later ones find PyTorch begun.
TEST(CudaTest, MemoryIsSaidBeforeTheFirstTensor) {
  std::string reason;
  parallel::CudaModule* module = UsableModule(reason);
  if (module == nullptr) GTEST_SKIP() << reason;
  const parallel::CudaMemory memory = module->Memory(0);
  EXPECT_GT(memory.total, 0);
  EXPECT_LE(memory.free, memory.total);
  EXPECT_LE(memory.allocated, memory.reserved);
}

TEST(CudaTest, AFewStepsEqualTheCpu) {
  std::string reason;
  if (UsableModule(reason) == nullptr) GTEST_SKIP() << reason;
  for (const auto& [dtype, experts] :
       {std::pair(at::kFloat, false), std::pair(at::kBFloat16, false), std::pair(at::kFloat, true),
        std::pair(at::kBFloat16, true)}) {
    std::vector<double> losses[2];
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)}) {
      keel::testing::RunRanks(1, 1, 1, [&, type = dtype, moe = experts](auto& context) {
        TrainEngineOptions options;
        options.dtype = type;
        options.device = device;
        TrainEngine engine(context, SmallConfig(moe), options);
        engine.Initialize(3);
        const model::ModelBatch batch = BatchOn(device);
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

// What RL's losses are functions of: log-probabilities, entropies, values, and their gradients.
TEST(CudaTest, LogProbabilitiesAndValuesEqualTheCpu) {
  std::string reason;
  if (UsableModule(reason) == nullptr) GTEST_SKIP() << reason;
  for (const auto& [critic_too, experts] :
       {std::pair(false, false), std::pair(true, false), std::pair(false, true)}) {
    const bool critic = critic_too;
    const model::HfConfig config = SmallConfig(experts);
    std::vector<at::Tensor> found[2];
    for (const at::Device device : {at::Device(at::kCPU), at::Device(at::kCUDA, 0)}) {
      keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
        model::DecoderOptions shape;
        shape.device = device;
        shape.value_head = critic;
        model::Decoder decoder(config, {&context.tp(), false}, shape);
        parallel::WeightStore weights =
            parallel::GradBuffer::MakeStore(decoder.parameters(), context, {at::kFloat, device});
        parallel::GradBuffer buffer(weights, context);
        decoder.Initialize(3);
        buffer.ZeroGradients();
        const model::ModelBatch batch = BatchOn(device);
        const at::Tensor weight = at::arange(48, at::kFloat).sin().to(device);
        const at::Tensor hidden = decoder.Forward({}, batch);
        auto& out = found[device.is_cuda()];
        if (critic) {
          out = {decoder.Values(hidden)};
        } else {
          const auto token = decoder.LogProbsWithGradient(hidden, batch.targets, 0.7, true);
          out = {token.log_probs, token.entropy};
        }
        at::Tensor loss = (out[0] * weight).sum();
        if (!critic) loss = loss + (out[1] * weight.flip(0)).sum();
        loss.backward();
        for (at::Tensor& tensor : out) tensor = tensor.detach().cpu();
        for (const parallel::Parameter* p : decoder.parameters())
          out.push_back(p->gradient.cpu().clone());
      });
    }
    ASSERT_EQ(found[0].size(), found[1].size());
    for (size_t i = 0; i < found[0].size(); ++i) {
      const double scale = found[0][i].abs().max().item<double>();
      EXPECT_TRUE(at::allclose(found[1][i], found[0][i], 0, 1e-4 * scale)) << i;
    }
  }
}

// The losses of a step at the shapes that a model has, of which rows of 128 k logits are the
// longest, and lengths of a norm whose sums just fill a block's memory.
TEST(CudaTest, WideStepsAreNumbers) {
  std::string reason;
  if (UsableModule(reason) == nullptr) GTEST_SKIP() << reason;
  for (const auto& [hidden, vocabulary] :
       {std::pair<int64_t, int64_t>(64, 128256), std::pair<int64_t, int64_t>(12288, 131)}) {
    keel::testing::RunRanks(1, 1, 1, [&, wide = hidden, words = vocabulary](auto& context) {
      TrainEngineOptions options;
      options.dtype = at::kBFloat16;
      options.device = at::Device(at::kCUDA, 0);
      model::HfConfig config = SmallConfig();
      config.hidden_size = wide;
      config.num_hidden_layers = 1;
      config.vocab_size = words;
      config.tie_word_embeddings = true;
      TrainEngine engine(context, config, options);
      engine.Initialize(3);
      const StepResult first = engine.Step({BatchOn(options.device)}, 48, 1e-4, 1);
      EXPECT_TRUE(std::isfinite(first.loss));
      EXPECT_LT(engine.Step({BatchOn(options.device)}, 48, 1e-4, 2).loss, first.loss);
    });
  }
}

TEST(CudaTest, OffloadFreesTheDeviceAndChangesNoBit) {
  std::string reason;
  parallel::CudaModule* module = UsableModule(reason);
  if (module == nullptr) GTEST_SKIP() << reason;
  std::vector<double> losses[2];
  std::vector<at::Tensor> weights[2];
  for (const bool offload : {false, true}) {
    keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
      module->SetDevice(0);
      TrainEngineOptions options;
      options.dtype = at::kBFloat16;
      options.device = at::Device(at::kCUDA, 0);
      options.offload = {offload, offload, offload};
      TrainEngine engine(context, SmallConfig(), options);
      engine.Initialize(3);
      Residency& residency = engine.residency();
      const model::ModelBatch batch = BatchOn(options.device);
      engine.Step({batch}, 48, 1e-3, 1);  // libraries allocate their workspaces
      const int64_t before = module->Memory(0).allocated;
      engine.OffloadIdle();
      for (const StateClass c : {StateClass::kParams, StateClass::kGrads, StateClass::kOptimizer})
        EXPECT_EQ(residency.device_bytes(c) == 0, offload);
      if (offload) {
        // bf16 weights, fp32 gradients, masters and two moments: 18 bytes an element.
        const int64_t elements = engine.gradients().owned_elements();
        EXPECT_GE(before - module->Memory(0).allocated, 18 * elements);
      } else {
        EXPECT_EQ(module->Memory(0).allocated, before);
      }
      for (int step = 2; step <= 6; ++step) {
        const StepResult result = engine.Step({batch}, 48, 1e-3, step);
        losses[offload].push_back(result.loss);
        EXPECT_EQ(result.moves.optimizer_load > 0, offload);
      }
      residency.CopyToHost(StateClass::kParams);
      for (const parallel::Parameter* p : engine.decoder().parameters())
        weights[offload].push_back(residency.HostView(p->value).clone());
    });
  }
  EXPECT_EQ(losses[0], losses[1]);
  ASSERT_EQ(weights[0].size(), weights[1].size());
  for (size_t i = 0; i < weights[0].size(); ++i)
    EXPECT_TRUE(at::equal(weights[0][i], weights[1][i])) << "parameter " << i;
}

// The copies of a save go on beside the next step, and hold the bytes of the one before.
TEST(CudaTest, CopiesForASaveBesideTheNextStepAreOfTheirOwnStep) {
  std::string reason;
  parallel::CudaModule* module = UsableModule(reason);
  if (module == nullptr) GTEST_SKIP() << reason;
  keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
    module->SetDevice(0);
    TrainEngineOptions options;
    options.dtype = at::kBFloat16;
    options.device = at::Device(at::kCUDA, 0);
    TrainEngine engine(context, SmallConfig(), options);
    engine.Initialize(3);
    engine.set_before_write([](const void*, size_t) {});
    const model::ModelBatch batch = BatchOn(options.device);
    for (int step = 1; step <= 10; step += 2) {
      engine.Step({batch}, 48, 1e-2, step);
      std::vector<at::Tensor> before;
      for (const parallel::Parameter* p : engine.decoder().parameters())
        before.push_back(p->value.cpu());
      (void)engine.SaveTables();
      std::vector<at::Tensor> host;
      for (const parallel::Parameter* p : engine.decoder().parameters())
        host.push_back(engine.residency().HostView(p->value));
      EXPECT_TRUE(engine.ModelOnHost() && engine.OptimizerOnHost());
      engine.Step({batch}, 48, 1e-2, step + 1);
      for (size_t i = 0; i < host.size(); ++i) {
        const Status arrived =
            engine.WaitArrived(static_cast<const std::byte*>(host[i].const_data_ptr()),
                               static_cast<int64_t>(host[i].nbytes()));
        ASSERT_TRUE(arrived.ok()) << arrived.ToString();
        EXPECT_TRUE(at::equal(host[i], before[i])) << "parameter " << i << ", step " << step;
      }
    }
  });
}

// NCCL as every group meets it, with the one rank that one GPU has: connecting, each collective,
// the watch over them, and both ends of a group.
TEST(CudaTest, AGroupOfNcclConnectsSumsAndEnds) {
  std::string reason;
  parallel::CudaModule* module = UsableModule(reason);
  if (module == nullptr) GTEST_SKIP() << reason;
  const parallel::Store store = parallel::Store::InProcess();
  for (const bool orderly : {true, false}) {
    parallel::GroupOptions options;
    options.name = orderly ? "alone" : "aborted";
    options.ranks = {0};
    options.deadline = std::chrono::seconds(60);
    options.cuda = true;
    options.device_index = 0;
    const auto group = module->MakeGroup(store, 0, options, nullptr);
    EXPECT_EQ(group->size(), 1);
    const at::TensorOptions fp32 = at::TensorOptions(at::kFloat).device(at::Device(at::kCUDA, 0));
    const at::Tensor in = at::arange(1024, fp32);
    at::Tensor sum = in.clone(), gathered = at::zeros_like(in), scattered = at::zeros_like(in);
    group->AllReduce(sum);
    group->AllGather(gathered, in);
    group->ReduceScatter(scattered, in);
    group->Broadcast(sum, 0);
    group->Barrier();
    for (const at::Tensor& out : {sum, gathered, scattered})
      EXPECT_TRUE(at::equal(out.cpu(), in.cpu()));
    EXPECT_TRUE(module->Lost().ok());
    if (orderly) group->Shutdown();
  }
  // A group that is dropped with nothing under way is no failure of others.
  EXPECT_TRUE(module->Lost().ok());
}

// 1,024 tokens, half of them one id, in sequences of many key blocks: the gradients of the
// embedding and of attention are sums that an order of no one would show in.
TEST(CudaTest, RunsOfRepeatedIdsGiveEqualBits) {
  std::string reason;
  if (UsableModule(reason) == nullptr) GTEST_SKIP() << reason;
  parallel::UseDeterministicKernels(true);
  for (const at::ScalarType dtype : {at::kFloat, at::kBFloat16}) {
    std::vector<at::Tensor> weights[2];
    std::vector<double> losses[2];
    for (const size_t run : {0, 1}) {
      keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
        TrainEngineOptions options;
        options.dtype = dtype;
        options.device = at::Device(at::kCUDA, 0);
        model::HfConfig config = SmallConfig();
        config.max_position_embeddings = 1024;
        TrainEngine engine(context, config, options);
        engine.Initialize(3);
        model::ModelBatch batch;
        const at::Tensor ids = at::arange(1024, at::kLong).mul(7).remainder(131);
        batch.ids = ids.masked_fill(at::arange(1024).remainder(2).eq(0), 65).to(options.device);
        batch.targets = batch.ids.roll(-1);
        batch.packing.positions =
            at::cat({at::arange(700, at::kInt), at::arange(324, at::kInt)}).to(options.device);
        batch.packing.boundaries = {0, 700, 1024};
        for (int step = 1; step <= 5; ++step)
          losses[run].push_back(engine.Step({batch}, 1024, 1e-3, step).loss);
        for (const parallel::Parameter* p : engine.decoder().parameters())
          weights[run].push_back(p->value.cpu());
      });
    }
    EXPECT_EQ(losses[0], losses[1]);
    for (size_t i = 0; i < weights[0].size(); ++i)
      EXPECT_TRUE(at::equal(weights[0][i], weights[1][i])) << "parameter " << i;
  }
}

}  // namespace
}  // namespace keel::trainer
