// Each key of a config.json changed in turn, for a model of each family: the logits are those of
// transformers, or the key is refused. Fixtures: tests/oracles/key_changes.py.

#include <gtest/gtest.h>

#include "model/config/hf_tensors.h"
#include "tests/support/ranks.h"
#include "tests/trainer/model_fixture.h"

namespace keel::trainer {
namespace {

// What a change did.
struct Outcome {
  int equal = 0;    // logits as transformers'
  int refused = 0;  // by the key's name
  int shapes = 0;   // the weights are not this model's
};

bool AreTensorsOf(const model::HfConfig& config, const Tensors& weights) {
  size_t needed = 0;
  for (const TensorInfo& tensor : model::TensorsOf(config, model::Head::kVocabulary).needed) {
    const auto it = weights.find(tensor.name);
    if (it == weights.end() || Dims(it->second.sizes()) != tensor.shape) return false;
    ++needed;
  }
  return needed == weights.size();
}

at::Tensor LogitsOf(const model::HfConfig& config, const Tensors& weights, const at::Tensor& ids) {
  at::Tensor logits;
  keel::testing::RunRanks(1, 1, 1, [&](parallel::ParallelContext& context) {
    TrainEngineOptions options;
    options.inference = true;
    TrainEngine engine(context, config, options);
    engine.LoadInto([&](const TrainEngine::StateTables& tables) -> TrainEngine::Written {
      Fill(tables.model, weights);
      return {.weights = true};
    });
    model::ModelBatch batch;
    batch.ids = ids.to(at::kLong);
    batch.packing.boundaries = {0, ids.size(0)};
    batch.packing.positions = at::arange(ids.size(0), at::kInt);
    const at::NoGradGuard no_grad;
    logits = engine.decoder().Logits(engine.decoder().Forward({}, batch)).clone();
  });
  return logits;
}

class ConfigKeysTest : public ::testing::TestWithParam<const char*> {};

TEST_P(ConfigKeysTest, ChangeWhatTransformersComputesOrAreRefused) {
  const std::string directory = FixtureDirectory() + "/" + GetParam();
  const Fixture fixture = LoadFixture(GetParam());
  const Tensors expected = keel::testing::ReadSafetensors(directory + "/keys.safetensors");
  const std::string keys = directory + "/keys.json";
  const Json changes = ValueOrThrow(ParseJson(ReadText(keys), keys));
  const std::string file = directory + "/hf/config.json";
  const Json plain = ValueOrThrow(ParseJson(ReadText(file), file));
  Outcome seen;
  for (size_t i = 0; i < changes.size(); ++i) {
    const std::string key = changes[i]["key"];
    const std::string change = key + " = " + changes[i]["value"].dump();
    Json changed = plain;
    changed[key] = changes[i]["value"];
    const auto config = model::ParseHfConfig(changed, "config.json");
    if (!config.ok()) {
      // The key, or one that it goes with.
      const std::string& message = config.status().message();
      const bool rope = key.starts_with("rope") && message.find("rope") != std::string::npos;
      EXPECT_TRUE(rope || message.find(key) != std::string::npos) << change << ": " << message;
      ++seen.refused;
      continue;
    }
    if (!AreTensorsOf(*config, fixture.weights)) {
      ++seen.shapes;
      continue;
    }
    const auto logits = expected.find("logits." + std::to_string(i));
    if (logits == expected.end()) {
      ADD_FAILURE() << change << " is accepted, and transformers says "
                    << changes[i]["outcome"].get<std::string>();
      continue;
    }
    const at::Tensor found = LogitsOf(*config, fixture.weights, expected.at("ids"));
    EXPECT_LT((found - logits->second).abs().max().item<double>(), 5e-5) << change;
    ++seen.equal;
  }
  EXPECT_GT(seen.equal, 5);
  EXPECT_GT(seen.refused, 5);
  EXPECT_GT(seen.shapes, 3);
}

INSTANTIATE_TEST_SUITE_P(
    Families, ConfigKeysTest,
    ::testing::Values("llama", "qwen2_window", "qwen3", "mistral_window", "smollm3", "gemma2",
                      "gemma3", "olmo2", "olmo3", "qwen3_moe", "mixtral", "phi3", "phi3_longrope",
                      "granite", "seed_oss", "arcee", "qwen2_moe", "exaone4", "exaone4_whole",
                      "gemma", "olmoe", "glm", "glm4", "ernie4_5", "ministral", "cwm", "internlm3",
                      "granite_hybrid", "hunyuan", "glm4_moe", "dots1", "minimax_m2", "deepseek_v2",
                      "deepseek_v3", "glm4_moe_lite", "youtu", "gpt_oss", "qwen3_next", "qwen3_5",
                      "qwen3_5_moe", "cohere", "cohere2", "starcoder2", "stablelm",
                      "stablelm_parallel", "nemotron", "gpt_neox", "ministral3", "helium", "jais2",
                      "vaultgemma", "solar_open", "gpt2", "gpt_neo", "opt", "gpt_bigcode", "phi",
                      "gptj"),
    [](const auto& test) { return std::string(test.param); });

}  // namespace
}  // namespace keel::trainer
