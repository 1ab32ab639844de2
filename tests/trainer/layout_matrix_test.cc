// Training under every layout against one process: losses over 8 steps (20 with KEEL_NIGHTLY=1),
// bit-equal repeats.

#include <gtest/gtest.h>

#include <cmath>
#include <cstdlib>
#include <map>
#include <mutex>
#include <string>
#include <tuple>
#include <vector>

#include "model/config/family_table.h"
#include "tests/support/nightly.h"
#include "tests/support/ranks.h"
#include "tests/support/tiny_training.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

using keel::testing::LossTokens;
using keel::testing::MicroBatches;
using keel::testing::RowsOfStep;
using keel::testing::TinyConfig;

const bool kNightly = testing::Nightly();
const int kSteps = kNightly ? 20 : 6;

struct Case {
  int tp, dp, pp;
  bool sequence_parallel;
  bool recompute;
  int microbatches;
  bool tied = false;
  model::Family family = model::Family::kLlama;
  bool adapters = false;
};

std::string NameOf(const Case& c) {
  return "tp" + std::to_string(c.tp) + "_dp" + std::to_string(c.dp) + "_pp" + std::to_string(c.pp) +
         (c.sequence_parallel ? "_sp" : "") + (c.recompute ? "_recompute" : "") + "_m" +
         std::to_string(c.microbatches) + (c.tied ? "_tied" : "") +
         (c.family == model::Family::kLlama
              ? ""
              : "_" + std::string(model::FamilyOf(c.family).model_type)) +
         (c.adapters ? "_adapters" : "");
}

model::HfConfig ConfigOf(const Case& c) {
  model::HfConfig config = TinyConfig(c.tied, c.family);
  if (c.adapters) config.adapter = {.rank = 3, .alpha = 24};
  return config;
}

// With states a rounding grows some five times a step at the usual rate, and is seen after ten.
double RateOf(const Case& c) { return ConfigOf(c).delta.key_heads > 0 ? 5e-4 : 5e-3; }

std::vector<double> Train(const Case& c, double rate) {
  std::vector<double> losses;
  std::mutex mutex;
  keel::testing::RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.device = keel::testing::DeviceOf(context);
    options.sequence_parallel = c.sequence_parallel;
    options.recompute = c.recompute;
    options.bucket_bytes = 8192;  // many buckets
    options.adamw = {0.9, 0.95, 1e-8, 0.1};
    TrainEngine engine(context, ConfigOf(c), options);
    engine.Initialize(5);
    std::vector<double> mine;
    for (int step = 0; step < kSteps; ++step) {
      const auto rows = RowsOfStep(step);
      const auto batches = MicroBatches(rows, context.dp_rank(), c.dp, c.microbatches,
                                        c.sequence_parallel ? c.tp : 1, options.device);
      mine.push_back(engine.Step(batches, LossTokens(rows), rate, step + 1).loss);
    }
    const std::lock_guard lock(mutex);
    if (losses.empty()) losses = mine;
    EXPECT_EQ(losses, mine) << "ranks disagree";
  });
  return losses;
}

struct SingleProcess {
  std::vector<double> losses;
  double untrained = 0;  // of the last step's rows
};

// The single process with the same model, computed once.
const SingleProcess& Reference(const Case& c) {
  static std::map<std::tuple<bool, model::Family, bool>, SingleProcess> known;
  SingleProcess& single = known[{c.tied, c.family, c.adapters}];
  if (single.losses.empty()) {
    const Case alone = {1, 1, 1, false, false, 1, c.tied, c.family, c.adapters};
    single = {Train(alone, RateOf(c)), Train(alone, 0).back()};
  }
  return single;
}

class LayoutMatrixTest : public ::testing::TestWithParam<Case> {};

TEST_P(LayoutMatrixTest, LossesEqualTheSingleProcess) {
  const auto& [expected, untrained] = Reference(GetParam());
  const std::vector<double> losses = Train(GetParam(), RateOf(GetParam()));
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << "step " << i + 1;
  // What the updates did is far above what is tolerated; in 20 steps it is better, too.
  EXPECT_GT(std::abs(losses.back() - untrained), 1e-4 * untrained) << "nothing was changed";
  if (kNightly) {
    EXPECT_LT(losses.back(), losses.front()) << "nothing was learnt";
  }
}

TEST(LayoutRepeatTest, ALayoutRepeatsBitForBit) {
  for (const Case& c : {Case{2, 2, 2, true, false, 2}, Case{2, 1, 2, false, true, 4, true},
                        Case{1, 2, 1, false, false, 1}, Case{3, 2, 1, true, false, 2},
                        Case{2, 1, 2, true, true, 2, false, model::Family::kQwen3Moe},
                        Case{3, 1, 2, true, false, 2, true, model::Family::kQwen2, true}}) {
    const std::vector<double> first = Train(c, RateOf(c));
    for (int repeat = 0; repeat < 2; ++repeat) EXPECT_EQ(Train(c, RateOf(c)), first) << NameOf(c);
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const auto& [tp, dp, pp] : std::vector<std::tuple<int, int, int>>{{1, 1, 1},
                                                                         {2, 1, 1},
                                                                         {1, 1, 2},
                                                                         {1, 2, 1},
                                                                         {2, 1, 2},
                                                                         {2, 2, 1},
                                                                         {1, 2, 2},
                                                                         {2, 2, 2}}) {
    for (const int microbatches : {1, 2, 4}) {
      for (const bool recompute : {false, true}) {
        // Two of both kinds; ordinarily one and four of one kind each.
        if (!kNightly && microbatches == (recompute ? 1 : 4)) continue;
        cases.push_back({tp, dp, pp, false, recompute, microbatches});
        if (tp > 1) cases.push_back({tp, dp, pp, true, recompute, microbatches});
      }
    }
    // Tied embeddings over stages, and the families with biases and per-head norms.
    cases.push_back({tp, dp, pp, tp > 1, false, 2, true});
    cases.push_back({tp, dp, pp, tp > 1, false, 2, false, model::Family::kQwen3});
    cases.push_back({tp, dp, pp, false, false, 2, true, model::Family::kQwen2});
    // Experts, with all but one layer and with every layer of them.
    cases.push_back({tp, dp, pp, tp > 1, false, 2, false, model::Family::kQwen3Moe});
    cases.push_back({tp, dp, pp, false, pp > 1, 1, true, model::Family::kMixtral});
  }
  // Four heads with two key/value heads, 48 columns, 131 tokens: over three and four ranks nothing
  // divides, and ranks hold the same key/value heads.
  cases.push_back({3, 1, 1, false, false, 1});
  cases.push_back({3, 2, 1, true, false, 2, false, model::Family::kQwen3});
  cases.push_back({3, 1, 2, false, true, 2, true, model::Family::kQwen2});
  cases.push_back({4, 1, 1, true, false, 2, true, model::Family::kQwen2});
  // Windows, softcaps and norms on both sides; norms over the heads of all ranks.
  cases.push_back({2, 1, 1, true, false, 2, true, model::Family::kGemma2});
  cases.push_back({1, 2, 2, false, false, 2, true, model::Family::kGemma2});
  cases.push_back({3, 1, 2, true, true, 2, true, model::Family::kGemma2});
  cases.push_back({2, 2, 1, false, true, 2, false, model::Family::kOlmo2});
  cases.push_back({4, 1, 1, true, false, 2, false, model::Family::kOlmo2});
  // Factors of what is added and of logits; no gate; an expert beside the others.
  cases.push_back({2, 2, 1, true, false, 2, true, model::Family::kGranite});
  cases.push_back({1, 1, 2, false, true, 2, true, model::Family::kGranite});
  cases.push_back({3, 1, 2, false, false, 2, false, model::Family::kArcee});
  cases.push_back({2, 1, 1, true, true, 2, true, model::Family::kArcee});
  cases.push_back({3, 1, 2, true, true, 2, false, model::Family::kGptNeox});
  cases.push_back({2, 2, 1, false, false, 2, true, model::Family::kCohere});
  // A bias on logits.
  cases.push_back({3, 1, 2, true, true, 2, true, model::Family::kPhi});
  cases.push_back({2, 2, 1, false, false, 2, false, model::Family::kPhi});
  // Learned positions; matrices whose rows are of inputs.
  cases.push_back({3, 1, 2, true, true, 2, true, model::Family::kGpt2});
  cases.push_back({2, 2, 1, true, false, 2, false, model::Family::kGpt2});
  cases.push_back({2, 2, 2, false, false, 2, false, model::Family::kGpt2, true});
  cases.push_back({3, 1, 1, true, false, 2, false, model::Family::kQwen2Moe});
  cases.push_back({2, 1, 2, false, true, 2, true, model::Family::kQwen2Moe});
  // Heads that share what queries, keys and values come of; each of them on a rank of its own.
  cases.push_back({2, 2, 2, true, true, 2, true, model::Family::kDeepseekV3});
  cases.push_back({3, 1, 1, false, false, 2, false, model::Family::kDeepseekV3});
  cases.push_back({4, 1, 1, true, false, 2, true, model::Family::kDeepseekV3});
  // Layers with states, heads of which do not divide over the ranks.
  cases.push_back({2, 2, 2, true, true, 2, true, model::Family::kQwen35});
  cases.push_back({3, 1, 1, true, false, 2, false, model::Family::kQwen3Next});
  cases.push_back({4, 1, 1, false, false, 2, true, model::Family::kQwen35});
  // Adapters alone learn: beside fused weights, weights that ranks share, and some of the layers'.
  cases.push_back({2, 1, 1, true, false, 2, false, model::Family::kLlama, true});
  cases.push_back({2, 2, 2, true, true, 2, true, model::Family::kLlama, true});
  cases.push_back({1, 1, 2, false, true, 2, true, model::Family::kQwen3, true});
  cases.push_back({3, 1, 1, true, false, 2, false, model::Family::kQwen2, true});
  cases.push_back({4, 1, 1, false, false, 2, true, model::Family::kGemma2, true});
  cases.push_back({2, 1, 2, true, false, 2, false, model::Family::kQwen2Moe, true});
  cases.push_back({3, 1, 1, false, true, 2, false, model::Family::kDeepseekV3, true});
  cases.push_back({2, 2, 1, false, false, 2, true, model::Family::kQwen35, true});
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, LayoutMatrixTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return NameOf(test.param); });

}  // namespace
}  // namespace keel::trainer
