// Training under every layout against one process: losses over 20 steps, bit-equal repeats.

#include <gtest/gtest.h>

#include <cmath>
#include <map>
#include <mutex>
#include <string>
#include <vector>

#include "tests/support/ranks.h"
#include "trainer/data/batch.h"
#include "trainer/train_engine.h"

namespace keel::trainer {
namespace {

using model::ModelBatch;

constexpr int kSteps = 20;
constexpr int64_t kBatch = 8;    // sequences a step
constexpr int64_t kLength = 24;  // at most; sequences differ in length

// Vocabulary 131 does not divide by 2; 3 layers do not divide over 2 stages.
model::HfConfig TinyConfig(bool tied, model::Family family) {
  model::HfConfig config;
  config.family = family;
  config.hidden_size = 32;
  config.intermediate_size = 48;
  config.num_hidden_layers = 3;
  config.num_attention_heads = 4;
  config.num_key_value_heads = 2;
  config.head_dim = 8;
  config.vocab_size = 131;
  config.max_position_embeddings = 64;
  config.tie_word_embeddings = tied;
  config.attention_bias = family == model::Family::kQwen2;
  config.initializer_range = 0.1;
  return config;
}

// Deterministic rows of several lengths with some targets ignored.
struct Rows {
  std::vector<std::vector<int32_t>> tokens;
  std::vector<std::vector<int32_t>> targets;
};
Rows RowsOfStep(int step) {
  Rows rows;
  for (int64_t i = 0; i < kBatch; ++i) {
    const int64_t length = kLength - (step * 5 + i * 3) % 11;
    std::vector<int32_t> tokens, targets;
    for (int64_t t = 0; t <= length; ++t)
      tokens.push_back(static_cast<int32_t>((t * t * 7 + i * 13 + step * 29 + t) % 131));
    for (int64_t t = 0; t < length; ++t)
      targets.push_back((t + i) % 7 == 0 ? -100 : tokens[static_cast<size_t>(t) + 1]);
    tokens.pop_back();
    rows.tokens.push_back(tokens);
    rows.targets.push_back(targets);
  }
  return rows;
}

std::vector<ModelBatch> MicroBatches(const Rows& rows, int dp_rank, int dp, int microbatches,
                                     int64_t pad) {
  std::vector<ModelBatch> batches;
  const int64_t mine = kBatch / dp;
  const int64_t each = mine / microbatches;
  for (int64_t m = 0; m < microbatches; ++m) {
    std::vector<int64_t> ids, targets, positions, boundaries = {0};
    for (int64_t i = dp_rank * mine + m * each; i < dp_rank * mine + (m + 1) * each; ++i) {
      const auto& row = rows.tokens[static_cast<size_t>(i)];
      ids.insert(ids.end(), row.begin(), row.end());
      const auto& target = rows.targets[static_cast<size_t>(i)];
      targets.insert(targets.end(), target.begin(), target.end());
      for (size_t t = 0; t < row.size(); ++t) positions.push_back(static_cast<int64_t>(t));
      boundaries.push_back(static_cast<int64_t>(ids.size()));
    }
    int64_t extra = (pad - static_cast<int64_t>(ids.size()) % pad) % pad;
    for (int64_t t = 0; t < extra; ++t) {
      ids.push_back(0);
      targets.push_back(-100);
      positions.push_back(t);
    }
    if (extra > 0) boundaries.push_back(static_cast<int64_t>(ids.size()));
    ModelBatch batch;
    batch.ids = at::tensor(ids, at::kLong);
    batch.targets = at::tensor(targets, at::kLong);
    batch.packing.positions = at::tensor(positions, at::kInt);
    batch.packing.boundaries = boundaries;
    batches.push_back(batch);
  }
  return batches;
}

struct Case {
  int tp, dp, pp;
  bool sequence_parallel;
  bool recompute;
  int microbatches;
  bool tied = false;
  model::Family family = model::Family::kLlama;
};

std::string NameOf(const Case& c) {
  return "tp" + std::to_string(c.tp) + "_dp" + std::to_string(c.dp) + "_pp" + std::to_string(c.pp) +
         (c.sequence_parallel ? "_sp" : "") + (c.recompute ? "_recompute" : "") + "_m" +
         std::to_string(c.microbatches) + (c.tied ? "_tied" : "") +
         (c.family == model::Family::kQwen3   ? "_qwen3"
          : c.family == model::Family::kQwen2 ? "_qwen2"
                                              : "");
}

std::vector<double> Train(const Case& c) {
  std::vector<double> losses;
  std::mutex mutex;
  keel::testing::RunRanks(c.tp, c.dp, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.sequence_parallel = c.sequence_parallel;
    options.recompute = c.recompute;
    options.bucket_bytes = 8192;  // many buckets
    options.adamw = {0.9, 0.95, 1e-8, 0.1};
    TrainEngine engine(context, TinyConfig(c.tied, c.family), options);
    engine.Initialize(5);
    std::vector<double> mine;
    for (int step = 0; step < kSteps; ++step) {
      const Rows rows = RowsOfStep(step);
      int64_t counted = 0;
      for (const auto& targets : rows.targets) {
        for (const int32_t target : targets) counted += target != -100;
      }
      const auto batches = MicroBatches(rows, context.dp_rank(), c.dp, c.microbatches,
                                        c.sequence_parallel ? c.tp : 1);
      mine.push_back(engine.Step(batches, counted, 5e-3, step + 1).loss);
    }
    const std::lock_guard lock(mutex);
    if (losses.empty()) losses = mine;
    EXPECT_EQ(losses, mine) << "ranks disagree";
  });
  return losses;
}

// The single process with the same model, computed once.
const std::vector<double>& Reference(const Case& c) {
  static std::map<std::pair<bool, model::Family>, std::vector<double>> known;
  auto& losses = known[{c.tied, c.family}];
  if (losses.empty()) losses = Train({1, 1, 1, false, false, 1, c.tied, c.family});
  return losses;
}

class LayoutMatrixTest : public ::testing::TestWithParam<Case> {};

TEST_P(LayoutMatrixTest, LossesEqualTheSingleProcess) {
  const std::vector<double>& expected = Reference(GetParam());
  const std::vector<double> losses = Train(GetParam());
  ASSERT_EQ(losses.size(), expected.size());
  for (size_t i = 0; i < losses.size(); ++i)
    EXPECT_NEAR(losses[i], expected[i], 1e-5 * expected[i]) << "step " << i + 1;
  EXPECT_LT(losses.back(), losses.front()) << "nothing was learnt";
}

TEST(LayoutRepeatTest, ALayoutRepeatsBitForBit) {
  for (const Case& c : {Case{2, 2, 2, true, false, 2}, Case{2, 1, 2, false, true, 4, true},
                        Case{1, 2, 1, false, false, 1}}) {
    const std::vector<double> first = Train(c);
    for (int repeat = 0; repeat < 2; ++repeat) EXPECT_EQ(Train(c), first) << NameOf(c);
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
        cases.push_back({tp, dp, pp, false, recompute, microbatches});
        if (tp > 1) cases.push_back({tp, dp, pp, true, recompute, microbatches});
      }
    }
    // Tied embeddings over stages, and the families with biases and per-head norms.
    cases.push_back({tp, dp, pp, tp > 1, false, 2, true});
    cases.push_back({tp, dp, pp, tp > 1, false, 2, false, model::Family::kQwen3});
    cases.push_back({tp, dp, pp, false, false, 2, true, model::Family::kQwen2});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, LayoutMatrixTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) { return NameOf(test.param); });

}  // namespace
}  // namespace keel::trainer
