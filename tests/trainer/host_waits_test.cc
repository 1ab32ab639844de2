// How often a host waits for its device, counted on a pretend GPU: this program runs with
// KEEL_CUDA_MODULE.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include "tests/rollout/rollout_model.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

using keel::testing::RolloutModel;

int64_t Waits() {
  static const auto waits =
      reinterpret_cast<int64_t (*)()>(dlsym(RTLD_DEFAULT, "keel_pretend_gpu_waits"));
  return waits();
}

class HostWaits : public ::testing::TestWithParam<model::Family> {
 protected:
  void SetUp() override { ValueOrThrow(parallel::LoadCudaModule())->SetDevice(0); }
  // Layers whose tokens the host sorts by their experts, for which it must know them.
  static int64_t SortedLayers() {
    const model::HfConfig config = keel::testing::TinyConfig(true, GetParam());
    return config.moe.experts > 0 ? config.num_hidden_layers : 0;
  }
};

TEST_P(HostWaits, OfATrainingStepAreOne) {
  // And with experts, how many tokens of a micro-batch are learnt from.
  constexpr int kMicroBatches = 2;
  const int64_t sorted = SortedLayers();
  const int64_t most = 1 + kMicroBatches * (sorted + (sorted > 0 ? 1 : 0));
  keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.device = keel::testing::DeviceOf(context);
    TrainEngine engine(context, keel::testing::TinyConfig(true, GetParam()), options);
    engine.Initialize(5);
    for (int step = 1; step <= 3; ++step) {
      const auto rows = keel::testing::RowsOfStep(step);
      const auto batches =
          keel::testing::MicroBatches(rows, 0, 1, kMicroBatches, 1, options.device);
      const int64_t before = Waits();
      engine.Step(batches, keel::testing::LossTokens(rows), 1e-3, step);
      if (step > 1) {
        EXPECT_LE(Waits() - before, most) << "step " << step;
      }
    }
  });
}

TEST_P(HostWaits, OfAStepOfGenerationAreOne) {
  RolloutModel model(GetParam());
  rollout::Engine engine = model.MakeEngine();
  for (rollout::Request& request : keel::testing::MixedRequests(6, 1.0)) engine.Add(request);
  int64_t most = 0;
  for (int step = 0; !engine.idle(); ++step) {
    const int64_t before = Waits();
    engine.Step();
    if (step > 2) most = std::max(most, Waits() - before);
  }
  EXPECT_LE(most, 1 + SortedLayers());
}

INSTANTIATE_TEST_SUITE_P(Families, HostWaits,
                         ::testing::Values(model::Family::kLlama, model::Family::kGemma2,
                                           model::Family::kMixtral));

}  // namespace
}  // namespace keel::trainer
