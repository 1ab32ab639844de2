// The model, its gradients and three AdamW steps against transformers and torch.optim.AdamW, for
// each family and layout. Fixtures: tests/oracles/make_model_fixtures.py.

#include <gtest/gtest.h>

#include <algorithm>
#include <cmath>
#include <mutex>

#include "common/json.h"
#include "rollout/engine.h"
#include "tests/support/ranks.h"
#include "tests/trainer/model_fixture.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

using model::ModelBatch;
at::Tensor Narrow(at::Tensor tensor, const Box& box) {
  for (int d = 0; d < box.dims(); ++d) tensor = tensor.narrow(d, box.offset[d], box.size[d]);
  return tensor;
}

at::Tensor ShardTensor(const ShardTable& table, const Shard& shard) {
  const std::vector<int64_t> size(shard.box.size.begin(), shard.box.size.end());
  const std::vector<int64_t> strides(shard.view.strides.begin(), shard.view.strides.end());
  EXPECT_EQ(table.tensor_of(shard).dtype, DType::kF32);
  return at::from_blob(shard.view.data, size, strides, at::kFloat);
}

double MaxDifference(const at::Tensor& a, const at::Tensor& b) {
  return (a - b).abs().max().item<double>();
}

ModelBatch BatchOf(const Tensors& reference) {
  ModelBatch batch;
  batch.ids = reference.at("input_ids").to(at::kLong);
  batch.targets = reference.at("targets").to(at::kLong);
  const at::Tensor boundaries = reference.at("cu_seqlens").to(at::kLong);
  std::vector<int64_t> positions;
  for (int64_t i = 0; i < boundaries.numel(); ++i) {
    batch.packing.boundaries.push_back(boundaries[i].item<int64_t>());
    if (i == 0) continue;
    const int64_t length =
        batch.packing.boundaries.back() - batch.packing.boundaries[static_cast<size_t>(i) - 1];
    for (int64_t p = 0; p < length; ++p) positions.push_back(p);
  }
  batch.packing.positions = at::tensor(positions, at::kInt);
  return batch;
}

// Sequence parallelism needs the tokens to divide: one more sequence of ignored tokens.
ModelBatch Padded(ModelBatch batch, int64_t multiple) {
  const int64_t tokens = batch.ids.size(0);
  const int64_t extra = (multiple - tokens % multiple) % multiple;
  if (extra == 0) return batch;
  const at::Tensor padding = at::zeros({extra}, at::kLong);
  batch.ids = at::cat({batch.ids, padding});
  batch.targets = at::cat({batch.targets, padding.add(parallel::kIgnoreTarget)});
  batch.packing.positions = at::cat({batch.packing.positions, at::arange(extra, at::kInt)});
  batch.packing.boundaries.push_back(tokens + extra);
  return batch;
}

// A model of each family, of each way to stretch positions and of each kind of window.
struct Family {
  const char* model;
  bool of_layouts;  // whether more than one layout says something
};
constexpr Family kFamilies[] = {
    {"llama_rope_linear", false},
    {"llama_rope_dynamic", true},
    {"llama_rope_yarn", false},
    {"llama_rope_yarn_mscale", false},
    {"llama_rope_longrope", true},
    {"mistral", false},
    {"mistral_window", true},
    {"qwen2_window", false},
    {"smollm3", true},
    {"gemma2", true},
    {"gemma3", true},
    {"olmo2", true},
    {"olmo3", true},
    {"qwen3_moe", true},
    {"qwen3_moe_balance", true},
    {"mixtral", true},
    {"mixtral_balance", true},
    {"phi3", true},
    {"phi3_longrope", true},
};

struct Case {
  std::string model;
  int tp;
  int pp;
  bool sequence_parallel;
  bool recompute;
};

class TransformersOracleTest : public ::testing::TestWithParam<Case> {};

TEST_P(TransformersOracleTest, LogitsLossGradientsAndThreeSteps) {
  const Case& c = GetParam();
  const Fixture fixture = LoadFixture(c.model);
  const int64_t tokens = fixture.reference.at("input_ids").size(0);
  const int64_t counted =
      fixture.reference.at("targets").ne(parallel::kIgnoreTarget).sum().item<int64_t>();
  std::mutex mutex;  // GoogleTest's assertions are used from all ranks

  keel::testing::RunRanks(c.tp, 1, c.pp, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.sequence_parallel = c.sequence_parallel;
    options.recompute = c.recompute;
    options.adamw = {0.9, 0.95, 1e-8, 0.1};
    options.clip_grad = 1.0;
    TrainEngine engine(context, fixture.config, options);
    engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
      const std::lock_guard lock(mutex);
      Fill(tables.model, fixture.weights);
      return {.weights = true};
    });
    const ModelBatch batch = Padded(BatchOf(fixture.reference), c.sequence_parallel ? c.tp : 1);

    if (c.pp == 1) {
      const at::NoGradGuard no_grad;
      const at::Tensor logits =
          engine.decoder().Logits(engine.decoder().Forward({}, batch)).narrow(0, 0, tokens);
      const std::lock_guard lock(mutex);
      EXPECT_LT(MaxDifference(logits, fixture.reference.at("logits")), 2e-5);
    }

    for (int step = 0; step < 3; ++step) {
      const StepResult result = engine.Step({batch}, counted, 1e-3, step + 1);
      const std::lock_guard lock(mutex);
      const double loss = fixture.summary["losses"][static_cast<size_t>(step)].get<double>();
      const double norm = fixture.summary["grad_norms"][static_cast<size_t>(step)].get<double>();
      // The first is the forward alone; the others stand on the updates before them.
      EXPECT_NEAR(result.loss, loss, (step == 0 ? 1e-6 : 1e-5) * loss) << "step " << step;
      EXPECT_NEAR(result.grad_norm, norm, 1e-4 * norm) << "step " << step;
      EXPECT_FALSE(result.skipped);
      if (step > 0) continue;
      for (const parallel::Parameter* p : engine.decoder().parameters()) {
        for (const parallel::ParameterPiece& piece : p->pieces) {
          const at::Tensor whole = fixture.reference.at("grad." + piece.name);
          const at::Tensor mine = p->gradient.narrow(0, piece.row_begin, piece.box.size[0]);
          const double error = (mine - Narrow(whole, piece.box)).norm().item<double>();
          // An expert that no token chose has none.
          EXPECT_LE(error, 0.5e-4 * whole.norm().item<double>()) << piece.name;
        }
      }
    }

    const std::lock_guard lock(mutex);
    ShardTable weights, moments;
    engine.LoadInto([&](TrainEngine::StateTables tables) -> TrainEngine::Written {
      weights = std::move(tables.model);
      moments = std::move(tables.optimizer);
      return {};  // they are only read
    });
    for (const Shard& shard : weights.shards()) {
      const std::string& name = weights.tensor_of(shard).name;
      const at::Tensor expected = Narrow(fixture.reference.at("step3." + name), shard.box);
      const at::Tensor difference = (ShardTensor(weights, shard) - expected).abs();
      // Adam divides by the gradient's size: where that is near eps the quotient is rounding noise,
      // and only the three steps' rate bounds the difference. Elsewhere each element is held.
      const at::Tensor clear =
          Narrow(fixture.reference.at("grad." + name), shard.box).abs().gt(1e-5);
      EXPECT_LT((difference * clear).max().item<double>(), 1e-5) << name;
      EXPECT_LT(difference.max().item<double>(), 3e-3) << name;
      EXPECT_LT((difference * clear).norm().item<double>(), 2e-5 * expected.norm().item<double>())
          << name;
    }
    for (const Shard& shard : moments.shards()) {
      const std::string name =
          moments.tensor_of(shard).name.substr(std::string("optimizer.").size());
      const at::Tensor expected = Narrow(fixture.reference.at(name), shard.box);
      const double scale = fixture.reference.at(name).abs().max().item<double>();
      EXPECT_LT(MaxDifference(ShardTensor(moments, shard), expected), 5e-4 * scale) << name;
    }
  });
}

// Prompts, and the texts that transformers writes.
struct GreedyTexts {
  std::vector<rollout::Request> requests;
  std::vector<std::vector<int32_t>> answers;
};

GreedyTexts LoadGreedyTexts(const std::string& name) {
  const std::string path = FixtureDirectory() + "/" + name + "/generate.json";
  GreedyTexts texts;
  for (const Json& row : ValueOrThrow(ParseJson(ReadText(path), path))) {
    texts.answers.push_back(row["output_ids"].get<std::vector<int32_t>>());
    rollout::Request& request = texts.requests.emplace_back();
    request.prompt = row["input_ids"].get<std::vector<int32_t>>();
    request.prompt_id = texts.requests.size();
    request.sampling.temperature = 0;
    request.sampling.max_tokens = static_cast<int64_t>(texts.answers.back().size());
  }
  return texts;
}

// Prompts in one batch, longer than the windows, and the keys and values of each rank's own heads.
void CheckGreedyTokens(const std::vector<const char*>& names, const std::vector<int>& degrees) {
  for (const char* name : names) {
    const Fixture fixture = LoadFixture(name);
    const auto [requests, answers] = LoadGreedyTexts(name);
    std::mutex mutex;
    for (const int tp : degrees) {
      keel::testing::RunRanks(tp, 1, 1, [&](parallel::ParallelContext& context) {
        TrainEngineOptions options;
        options.inference = true;
        TrainEngine engine(context, fixture.config, options);
        engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
          const std::lock_guard lock(mutex);
          Fill(tables.model, fixture.weights);
          return {.weights = true};
        });
        rollout::Engine generator(engine.decoder(), context.tp(), {});
        const auto completions = generator.Generate(requests);
        const std::lock_guard lock(mutex);
        ASSERT_EQ(completions.size(), answers.size());
        for (size_t i = 0; i < completions.size(); ++i)
          EXPECT_EQ(completions[i].tokens, answers[i]) << name << " over " << tp << " ranks";
      });
    }
  }
}

TEST(TransformersOracle, GreedyTokensOverEveryNumberOfRanks) {
  CheckGreedyTokens(
      {"llama_9_heads", "llama_15_heads", "qwen2_14_heads", "qwen3_6_heads", "phi3_9_heads"},
      {1, 2, 3, 4});
}

TEST(TransformersOracle, GreedyTokensOfEveryFamily) {
  CheckGreedyTokens(
      {"llama_rope_linear", "llama_rope_yarn", "llama_rope_yarn_mscale", "mistral",
       "mistral_window", "qwen2_window", "smollm3", "gemma2", "gemma3", "olmo3", "qwen3_moe",
       "qwen3_moe_balance", "mixtral", "mixtral_balance", "phi3", "phi3_longrope"},
      {1, 2});
  CheckGreedyTokens({"olmo2"}, {1, 3, 4});
}

// Blocks that the windows have passed are used again: a pool of what the longest text needs at one
// time, which for layers with a window is the window, serves all texts.
TEST(TransformersOracle, GreedyTokensInACacheOfTheWindows) {
  for (const char* name :
       {"mistral_window", "phi3", "qwen2_window", "smollm3", "gemma2", "gemma3", "olmo3"}) {
    const Fixture fixture = LoadFixture(name);
    const auto [requests, answers] = LoadGreedyTexts(name);
    keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
      TrainEngineOptions options;
      options.inference = true;
      TrainEngine engine(context, fixture.config, options);
      engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
        Fill(tables.model, fixture.weights);
        return {.weights = true};
      });
      const model::KvShape shape = engine.decoder().kv_shape();
      const rollout::KvGroups groups = rollout::GroupLayers(shape.windows);
      const int64_t longest = 40 + 16 - 1;
      const rollout::BlockManager one(1, 2, false, groups.windows);
      const int64_t least = one.MostBlocks(longest, 1);
      if (groups.windows.size() == 1 && groups.windows[0] > 0) {
        EXPECT_LT(2 * least, longest / 4);
      }
      for (const int64_t blocks : {least, least + 9, 4 * least}) {
        for (const bool prefix_caching : {true, false}) {
          rollout::EngineOptions small;
          small.block_size = 2;
          small.enable_prefix_caching = prefix_caching;
          small.kv_cache_bytes = blocks * rollout::KvCache::BlockBytes(shape, groups, 2);
          rollout::Engine generator(engine.decoder(), context.tp(), small);
          for (int round = 0; round < 2; ++round) {  // once more, with what is found
            const auto completions = generator.Generate(requests);
            for (size_t i = 0; i < completions.size(); ++i)
              EXPECT_EQ(completions[i].tokens, answers[i]) << name << ", " << blocks << " blocks";
          }
          EXPECT_LE(generator.stats().most_blocks, blocks);
          EXPECT_EQ(generator.stats().num_blocks, blocks);
          EXPECT_EQ(generator.stats().cache_bytes, small.kv_cache_bytes);
        }
      }
    });
  }
}

// A rotation that each token changes cannot be followed: the text ends with the original context.
TEST(TransformersOracle, ATextOfADynamicRotationEndsWithItsContext) {
  const Fixture fixture = LoadFixture("llama_rope_dynamic");
  keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.inference = true;
    TrainEngine engine(context, fixture.config, options);
    engine.Initialize(1);
    rollout::Engine generator(engine.decoder(), context.tp(), {});
    rollout::Request request;
    request.prompt = {1, 2, 3, 4, 5, 6, 7, 8};
    request.sampling.max_tokens = 9;
    EXPECT_LE(generator.Generate(std::vector{request})[0].tokens.size(), 4u);
  });
}

// What is in the cache when a text outgrows the original context is computed anew: each token is
// the one of a forward over all before it. Samples of one prompt, and texts that find each other's
// beginnings, some computed as short ones and some as long ones.
TEST(TransformersOracle, ATextThatOutgrowsItsContextIsTurnedAnew) {
  for (const char* name : {"llama_rope_longrope", "phi3_longrope"}) {
    const Fixture fixture = LoadFixture(name);
    keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
      TrainEngineOptions options;
      options.inference = true;
      TrainEngine engine(context, fixture.config, options);
      engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
        Fill(tables.model, fixture.weights);
        return {.weights = true};
      });
      const int64_t context_size = fixture.config.rope.original_positions;
      std::vector<rollout::Request> requests;
      for (const int64_t length : {context_size - 3, context_size, context_size + 5}) {
        for (int sample = 0; sample < 2; ++sample) {
          rollout::Request& request = requests.emplace_back();
          request.prompt_id = static_cast<uint64_t>(length);
          request.sample = sample;
          for (int32_t t = 0; t < length; ++t) request.prompt.push_back(t * t % 200);
          request.sampling.temperature = 0;
          request.sampling.max_tokens = 8;
        }
      }
      for (const int64_t at_once : {8192, 7}) {
        rollout::EngineOptions small;
        small.block_size = 2;
        small.scheduler.max_num_batched_tokens = at_once;
        rollout::Engine generator(engine.decoder(), context.tp(), small);
        const at::NoGradGuard no_grad;
        for (int round = 0; round < 2; ++round) {
          for (const rollout::Completion& c : generator.Generate(requests)) {
            std::vector<int32_t> text(static_cast<size_t>(c.prompt_id));
            for (size_t t = 0; t < text.size(); ++t) text[t] = static_cast<int32_t>(t * t % 200);
            ASSERT_EQ(c.tokens.size(), 8u);
            for (const int32_t token : c.tokens) {
              ModelBatch batch;
              const auto n = static_cast<int64_t>(text.size());
              batch.ids = at::tensor(text, at::kInt).to(at::kLong);
              batch.packing.boundaries = {0, n};
              batch.packing.positions = at::arange(n, at::kInt);
              const at::Tensor logits =
                  engine.decoder().Logits(engine.decoder().Forward({}, batch))[n - 1];
              ASSERT_EQ(token, logits.argmax().item<int64_t>()) << name << " after " << n;
              text.push_back(token);
            }
          }
        }
      }
    });
  }
}

// What an export writes is the model that was read, whichever way its file spelled it.
TEST(TransformersOracle, AnExportedConfigIsTheSameModel) {
  for (const Family& family : kFamilies) {
    const Fixture fixture = LoadFixture(family.model);
    const Json written = model::ToHfJson(fixture.config, DType::kF32);
    const auto again = ValueOrThrow(model::ParseHfConfig(written, family.model));
    EXPECT_EQ(again.Digest(), fixture.config.Digest());
    const Json over = model::ToHfJson(fixture.config, DType::kF32, &written);
    EXPECT_EQ(ValueOrThrow(model::ParseHfConfig(over, family.model)).Digest(),
              fixture.config.Digest());
  }
}

std::vector<Case> Cases() {
  std::vector<Case> cases;
  for (const char* name : {"llama", "llama_3_layers", "llama_attention_bias", "llama_head_dim",
                           "llama_rope_scaled", "llama_rope_scaled_v4", "llama_tied", "qwen2",
                           "qwen2_tied", "qwen2_v4", "qwen3", "qwen3_tied"}) {
    cases.push_back({name, 1, 1, false, false});
    cases.push_back({name, 2, 1, false, false});
    cases.push_back({name, 2, 1, true, false});
    cases.push_back({name, 1, 2, false, true});
    cases.push_back({name, 2, 2, true, true});
    cases.push_back({name, 2, 2, false, false});
  }
  // Heads, feed-forward width and vocabulary that no number of ranks divides, and fewer key-value
  // heads than ranks.
  for (const char* name :
       {"llama_9_heads", "llama_15_heads", "qwen2_14_heads", "qwen3_6_heads", "phi3_9_heads"}) {
    cases.push_back({name, 1, 1, false, false});
    for (const int tp : {2, 3, 4}) {
      cases.push_back({name, tp, 1, false, false});
      cases.push_back({name, tp, 1, true, true});
      cases.push_back({name, tp, 2, tp == 3, false});
    }
  }
  for (const Family& family : kFamilies) {
    cases.push_back({family.model, 1, 1, false, false});
    if (!family.of_layouts) continue;
    cases.push_back({family.model, 2, 1, false, false});
    cases.push_back({family.model, 2, 2, true, true});
  }
  // Norms over heads that several ranks hold, and that are dealt out unevenly.
  cases.push_back({"olmo2", 3, 1, true, false});
  cases.push_back({"olmo2", 4, 1, false, true});
  // The routers' sums carried over stages, with and without recompute, and experts of which no rank
  // has as many columns as another.
  for (const char* name : {"qwen3_moe_balance", "mixtral_balance"}) {
    cases.push_back({name, 1, 2, false, false});
    cases.push_back({name, 1, 2, false, true});
    cases.push_back({name, 3, 1, true, false});
  }
  return cases;
}

INSTANTIATE_TEST_SUITE_P(All, TransformersOracleTest, ::testing::ValuesIn(Cases()),
                         [](const auto& test) {
                           const Case& c = test.param;
                           return c.model + "_tp" + std::to_string(c.tp) + "_pp" +
                                  std::to_string(c.pp) + (c.sequence_parallel ? "_sp" : "") +
                                  (c.recompute ? "_recompute" : "");
                         });

}  // namespace
}  // namespace keel::trainer
