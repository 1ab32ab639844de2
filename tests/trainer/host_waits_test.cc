// How often a host waits for its device, counted on a pretend GPU: this program runs with
// KEEL_CUDA_MODULE.

#include <dlfcn.h>
#include <gtest/gtest.h>

#include <vector>

#include "tests/rollout/rollout_model.h"
#include "trainer/algorithms/policy_loss.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

using keel::testing::RolloutModel;

int64_t Waits() {
  static const auto waits =
      reinterpret_cast<int64_t (*)()>(dlsym(RTLD_DEFAULT, "keel_pretend_gpu_waits"));
  return waits();
}

struct Case {
  model::Family family;
  at::ScalarType dtype = at::kFloat;
  int sorted = 0;  // layers whose tokens the host sorts by their experts, for which it waits
};

class HostWaits : public ::testing::TestWithParam<Case> {
 protected:
  static constexpr int kMicroBatches = 2;
  void SetUp() override { keel::testing::LoneDevice(); }
  // Three steps, each of which but the first waits at most so often, and once for each layer whose
  // tokens the host sorts.
  template <typename Step>
  static void EachStep(int64_t most, Step take) {
    keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
      TrainEngineOptions options;
      options.device = keel::testing::DeviceOf(context);
      options.dtype = GetParam().dtype;
      TrainEngine engine(context, keel::testing::TinyConfig(true, GetParam().family), options);
      engine.Initialize(5);
      for (int step = 1; step <= 3; ++step) {
        const auto rows = keel::testing::RowsOfStep(step);
        const auto batches =
            keel::testing::MicroBatches(rows, 0, 1, kMicroBatches, 1, options.device);
        const int64_t before = Waits();
        take(engine, batches, keel::testing::LossTokens(rows), step);
        if (step > 1) {
          EXPECT_LE(Waits() - before, most + kMicroBatches * GetParam().sorted) << "step " << step;
        }
      }
    });
  }
};

TEST_P(HostWaits, OfATrainingStepAreOne) {
  EachStep(1, [](TrainEngine& engine, const std::vector<model::ModelBatch>& batches, int64_t tokens,
                 int step) { engine.Step(batches, tokens, 1e-3, step); });
}

// Of a loss of RL, too: what it counts of each micro-batch is read when all are done.
TEST_P(HostWaits, OfAPolicysStepAreTwo) {
  EachStep(2, [](TrainEngine& engine, const std::vector<model::ModelBatch>& batches, int64_t tokens,
                 int step) {
    rl::LossDenominators denominators;
    denominators.tokens = tokens;
    at::Tensor shares;
    if (engine.decoder().config().moe.experts > 0) {
      shares = at::full({kMicroBatches}, 1.0 / kMicroBatches,
                        at::TensorOptions(engine.options().device).dtype(at::kDouble));
    }
    rl::PolicyLossSums::Totals totals;
    engine.Step(
        batches,
        [&](int m, const at::Tensor& hidden, const model::Decoder::ReadyCallback& on_ready) {
          const model::ModelBatch& batch = batches[static_cast<size_t>(m)];
          rl::PolicyLossInputs in;
          in.layout = {batch.targets.ne(parallel::kIgnoreTarget), batch.packing.boundaries};
          in.log_probs = engine.decoder()
                             .LogProbsWithGradient(hidden, batch.targets, 1.0, false, on_ready)
                             .log_probs;
          in.old_log_probs = in.log_probs.detach();
          in.advantages = at::ones_like(in.old_log_probs);
          in.entropy = at::zeros_like(in.old_log_probs);
          const rl::PolicyLossResult part =
              rl::PolicyLoss(in, rl::PolicyLossOptions(), denominators);
          totals += part.totals;
          return part.loss;
        },
        shares, 1e-3, step);
    const auto sums = rl::PolicyLossSums::Of(totals.Read());
    EXPECT_EQ(sums.tokens, static_cast<double>(tokens));
  });
}

TEST_P(HostWaits, OfAStepOfGenerationAreOne) {
  RolloutModel model(GetParam().family, false, GetParam().dtype);
  rollout::Engine engine = model.MakeEngine();
  for (rollout::Request& request : keel::testing::MixedRequests(6, 1.0)) engine.Add(request);
  int64_t most = 0;
  for (int step = 0; !engine.idle(); ++step) {
    const int64_t before = Waits();
    engine.Step();
    if (step > 2) most = std::max(most, Waits() - before);
  }
  EXPECT_LE(most, 1 + GetParam().sorted);
}

INSTANTIATE_TEST_SUITE_P(Families, HostWaits,
                         ::testing::Values(Case{model::Family::kLlama},
                                           Case{model::Family::kGemma2},
                                           Case{model::Family::kLlama, at::kBFloat16},
                                           Case{model::Family::kMixtral, at::kFloat, 3},
                                           Case{model::Family::kMixtral, at::kBFloat16},
                                           Case{model::Family::kQwen3Moe, at::kBFloat16}));

}  // namespace
}  // namespace keel::trainer
