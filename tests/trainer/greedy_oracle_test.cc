// The texts that transformers writes greedily, by the engine: of every family, over several ranks,
// in caches of no more than the windows, and past the context that a rotation was made for.
// Fixtures: tests/oracles/make_model_fixtures.py.

#include <gtest/gtest.h>

#include <mutex>

#include "common/json.h"
#include "rollout/engine.h"
#include "tests/support/ranks.h"
#include "tests/trainer/model_fixture.h"
#include "trainer/engine/train_engine.h"

namespace keel::trainer {
namespace {

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

TEST(GreedyOracle, GreedyTokensOverEveryNumberOfRanks) {
  CheckGreedyTokens(
      {"llama_9_heads", "llama_15_heads", "qwen2_14_heads", "qwen3_6_heads", "phi3_9_heads"},
      {1, 2, 3, 4});
}

TEST(GreedyOracle, GreedyTokensOfEveryFamily) {
  CheckGreedyTokens({"llama_rope_linear",
                     "llama_rope_yarn",
                     "llama_rope_yarn_mscale",
                     "mistral",
                     "mistral_window",
                     "qwen2_window",
                     "smollm3",
                     "gemma2",
                     "gemma3",
                     "olmo3",
                     "qwen3_moe",
                     "qwen3_moe_balance",
                     "mixtral",
                     "mixtral_balance",
                     "phi3",
                     "phi3_longrope",
                     "granite",
                     "seed_oss",
                     "seed_oss_out_bias",
                     "arcee",
                     "qwen2_moe",
                     "qwen2_moe_balance",
                     "exaone4",
                     "exaone4_whole",
                     "gemma",
                     "olmoe",
                     "olmoe_balance",
                     "glm",
                     "glm4",
                     "ernie4_5",
                     "ministral",
                     "cwm",
                     "internlm3",
                     "granite_hybrid",
                     "granite_hybrid_nope",
                     "hunyuan",
                     "glm4_moe",
                     "glm4_moe_plain",
                     "dots1",
                     "minimax_m2",
                     "deepseek_v2",
                     "deepseek_v2_lite",
                     "deepseek_v3",
                     "deepseek_v3_plain",
                     "glm4_moe_lite",
                     "youtu",
                     "gpt_oss",
                     "gpt_oss_balance",
                     "qwen3_next",
                     "qwen3_5",
                     "qwen3_5_moe",
                     "cohere",
                     "cohere2",
                     "starcoder2",
                     "starcoder2_plain",
                     "stablelm",
                     "stablelm_parallel",
                     "nemotron",
                     "gpt_neox",
                     "gpt_neox_serial",
                     "ministral3",
                     "ministral3_window",
                     "helium",
                     "jais2",
                     "vaultgemma",
                     "solar_open",
                     "gpt2",
                     "gpt2_untied",
                     "gpt_neo",
                     "opt",
                     "opt_bare",
                     "gpt_bigcode",
                     "gpt_bigcode_heads",
                     "phi",
                     "phi_tied",
                     "gptj"},
                    {1, 2});
  CheckGreedyTokens({"olmo2"}, {1, 3, 4});
  CheckGreedyTokens({"deepseek_v3", "youtu"}, {4});  // a head a rank
}

// Blocks that the windows have passed are used again: a pool of what the longest text needs at one
// time, which for layers with a window is the window, serves all texts.
TEST(GreedyOracle, GreedyTokensInACacheOfTheWindows) {
  for (const char* name : {"mistral_window", "phi3", "qwen2_window", "smollm3", "gemma2", "gemma3",
                           "olmo3", "qwen2_moe_balance", "exaone4"}) {
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
TEST(GreedyOracle, ATextOfADynamicRotationEndsWithItsContext) {
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
TEST(GreedyOracle, ATextThatOutgrowsItsContextIsTurnedAnew) {
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
              model::ModelBatch batch;
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

}  // namespace
}  // namespace keel::trainer
