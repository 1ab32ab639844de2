// One step over one text of 32,768 tokens, with recompute: its loss and gradients are those of the
// same tokens computed without, and its memory is bounded. Windows take the same way.

#include <gtest/gtest.h>

#include <chrono>
#include <cstdio>
#include <fstream>
#include <string>

#include "tests/support/nightly.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

constexpr int64_t kLong = 32768;
constexpr int64_t kShort = 2048;
constexpr int64_t kLayers = 4;
// A token has 32 channels: 4 MiB an activation as wide as the model, of which a block has some
// thirty. With recompute there are those of one block, an input of each, and their gradients.
constexpr int64_t kMostPeak = int64_t{300} << 20;

// The largest resident memory since it was last asked to begin anew.
int64_t PeakBytes() {
  std::ifstream status("/proc/self/status");
  for (std::string line; std::getline(status, line);)
    if (line.starts_with("VmHWM:")) return std::stoll(line.substr(6)) * 1024;
  return 0;
}
bool BeginPeak() {
  std::ofstream reset("/proc/self/clear_refs");
  reset << "5" << std::flush;
  return reset.good();
}

model::HfConfig LongConfig(int64_t window) {
  model::HfConfig config = keel::testing::TinyConfig(false, model::Family::kMistral);
  config.num_hidden_layers = kLayers;
  config.max_position_embeddings = kLong;
  config.rope.theta = 1e6;
  if (window > 0) {
    config.sliding_window = window;
    config.windowed.assign(static_cast<size_t>(kLayers), true);
  }
  return config;
}

// One text of `length` tokens, of which those before `learnt` are learnt.
model::ModelBatch TextOf(int64_t length, int64_t learnt) {
  model::ModelBatch batch;
  const at::Tensor at = at::arange(length + 1, at::kLong);
  const at::Tensor text = (at * at * 7 + at.div(5, "floor") * 13).remainder(131);
  batch.ids = text.narrow(0, 0, length).clone();
  batch.targets = text.narrow(0, 1, length).clone();
  batch.targets.narrow(0, learnt, length - learnt).fill_(parallel::kIgnoreTarget);
  batch.packing.boundaries = {0, length};
  batch.packing.positions = at::arange(length, at::kInt);
  return batch;
}

struct Outcome {
  StepResult result;
  int64_t peak = 0;  // memory above what there was before the step
};

Outcome StepOver(int64_t length, int64_t learnt, int64_t window, bool recompute) {
  Outcome outcome;
  keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.recompute = recompute;
    TrainEngine engine(context, LongConfig(window), options);
    engine.Initialize(3);
    const model::ModelBatch batch = TextOf(length, learnt);
    const bool counts = BeginPeak();
    const int64_t before = PeakBytes();
    const auto start = std::chrono::steady_clock::now();
    outcome.result = engine.Step({batch}, learnt, 1e-3, 1);
    if (counts) outcome.peak = PeakBytes() - before;
    std::printf("%lld tokens, window %lld, %s: %.1f s, %.0f MiB\n", static_cast<long long>(length),
                static_cast<long long>(window), recompute ? "recompute" : "all kept",
                std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count(),
                static_cast<double>(outcome.peak) / (1 << 20));
  });
  return outcome;
}

// A token sees nothing behind it: of a long text whose beginning alone is learnt, loss and gradient
// are those of the beginning.
void CheckBeginning(int64_t length, int64_t window) {
  const Outcome alone = StepOver(kShort, kShort, window, false);
  const Outcome with = StepOver(length, kShort, window, true);
  EXPECT_NEAR(with.result.loss, alone.result.loss, 1e-5 * alone.result.loss);
  EXPECT_NEAR(with.result.grad_norm, alone.result.grad_norm, 1e-4 * alone.result.grad_norm);
}

TEST(LongContext, ALongTextsBeginningLearnsAsItDoesAlone) {
  CheckBeginning(kLong, 200);
  CheckBeginning(8192, 0);
}

// Minutes: every token of 32,768 sees all before it.
TEST(LongContext, ALongTextWithoutWindows) {
  if (!testing::Nightly()) GTEST_SKIP() << "minutes: with KEEL_NIGHTLY=1";
  CheckBeginning(kLong, 0);
  const Outcome whole = StepOver(kLong, kLong, 0, true);
  EXPECT_FALSE(whole.result.skipped);
  EXPECT_LT(whole.result.loss, 6);
  EXPECT_LT(whole.peak, kMostPeak);
}

// All of it is learnt: the same with all kept, which takes more memory.
TEST(LongContext, RecomputeBoundsTheMemory) {
  // This one first: memory that is free again is not counted twice.
  const Outcome bounded = StepOver(kLong, kLong, 200, true);
  const Outcome kept = StepOver(kLong, kLong, 200, false);
  EXPECT_NEAR(bounded.result.loss, kept.result.loss, 1e-6 * kept.result.loss);
  EXPECT_NEAR(bounded.result.grad_norm, kept.result.grad_norm, 1e-5 * kept.result.grad_norm);
  EXPECT_LT(bounded.peak, kMostPeak);
  if (kept.peak > 0) {
    EXPECT_LT(bounded.peak, kept.peak * 2 / 3);
  }
}

}  // namespace
}  // namespace keel::trainer
