// What a GGUF file says of its family, and what llama.cpp takes for granted, in config.json.

#include "model/gguf/gguf_families.h"

#include <gmock/gmock.h>

#include <cmath>
#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/gguf/gguf_configs.h"

namespace keel::model {
namespace {

using testing::ConfigError;
using testing::ConfigOf;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::TinyOf;

TEST(GgufFamiliesTest, Gemma) {
  GgufBuilder gguf = TinyOf("gemma2");
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["sliding_window"], 4096);  // what a file that does not say it means
  EXPECT_EQ(config["attn_logit_softcapping"], 50.0);
  EXPECT_EQ(config["final_logit_softcapping"], 30.0);
  EXPECT_EQ(config["query_pre_attn_scalar"], 6);
  EXPECT_EQ(config["layer_types"][0], "sliding_attention");
  EXPECT_EQ(config["layer_types"][1], "full_attention");
  EXPECT_FALSE(config.contains("hidden_act"));

  gguf = TinyOf("gemma3");
  EXPECT_THAT(ConfigError(gguf), HasSubstr("key gemma3.attention.sliding_window: is missing"));
  gguf.Int("gemma3.attention.sliding_window", 16);
  gguf.Text("gemma3.rope.scaling.type", "linear");
  gguf.Float("gemma3.rope.scaling.factor", 8);
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["model_type"], "gemma3_text");
  EXPECT_EQ(config["layer_types"][4], "sliding_attention");
  EXPECT_EQ(config["layer_types"][5], "full_attention");
  EXPECT_EQ(config["rope_local_base_freq"], 10000.0);
  EXPECT_EQ(config["rope_scaling"]["factor"], 8.0);
  EXPECT_EQ(config["final_logit_softcapping"], nullptr);
  gguf.Float("gemma3.rope.freq_base_swa", 777);
  gguf.Int("gemma3.attention.sliding_window_pattern", 3);
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["layer_types"][2], "full_attention");
  EXPECT_EQ(config["rope_local_base_freq"], 777.0);
}

// The 27B models alone divide scores by the root of hidden_size / num_attention_heads.
TEST(GgufFamiliesTest, TheLargestGemmas) {
  for (const auto& [name, layers] : {std::pair("gemma2", 46u), std::pair("gemma3", 62u)}) {
    GgufBuilder gguf = TinyOf(name);
    gguf.keys.erase(gguf.keys.begin() + 1);
    gguf.Int(std::string(name) + ".block_count", layers);
    gguf.Int(std::string(name) + ".attention.sliding_window", 16);
    EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).config["query_pre_attn_scalar"], 4);
  }
}

// One value a layer, as the converter writes them.
TEST(GgufFamiliesTest, WindowsLayerByLayer) {
  for (const char* name : {"gemma3", "olmo2", "exaone4"}) {
    const std::string key = std::string(name) + ".attention.sliding_window_pattern";
    GgufBuilder gguf = TinyOf(name);
    gguf.Int(std::string(name) + ".attention.sliding_window", 16);
    const auto with = [&](const std::string& windowed) {
      GgufBuilder changed = gguf;
      changed.Array(key, GgufType::kBool, windowed.size(), windowed);
      return changed;
    };
    std::string odd;
    for (int i = 0; i < 12; ++i) odd += std::string(1, i % 3 == 0 ? 1 : 0);
    const Json config = ValueOrThrow(ConfigOf(with(odd))).config;
    for (size_t i = 0; i < 12; ++i) {
      EXPECT_EQ(config["layer_types"][i], i % 3 == 0 ? "sliding_attention" : "full_attention");
    }
    EXPECT_THAT(ConfigError(with(odd.substr(1))),
                HasSubstr(key + ": 11 values, expected 12, one a layer"));
    GgufBuilder other = gguf;
    other.Numbers<int32_t>(key, GgufType::kInt32, std::vector<int32_t>(12, 2));
    EXPECT_THAT(ConfigError(other), HasSubstr(key + ": expected true or false for each layer"));
    other = gguf;
    other.Int(key, 0);
    EXPECT_THAT(ConfigError(other), HasSubstr(key + ": 0 is no number of layers"));
    other = TinyOf(name);
    other.Numbers<int32_t>(std::string(name) + ".attention.sliding_window", GgufType::kInt32,
                           {16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 16, 8});
    EXPECT_THAT(ConfigError(other),
                HasSubstr(".attention.sliding_window: differs from layer to layer"));
  }
}

TEST(GgufFamiliesTest, NamesOfBothSides) {
  for (int i = 0; i <= static_cast<int>(GgufFamily::kOlmoe); ++i) {
    const auto family = static_cast<GgufFamily>(i);
    EXPECT_EQ(GgufTableOf(family).family, family);
  }
  EXPECT_THAT(
      ConfigError(TinyOf("mamba")),
      HasSubstr("\"mamba\" is not supported, expected one of llama, qwen2, qwen2moe, qwen3, "
                "qwen3moe, gemma2, gemma3, phi3, smollm3, olmo2, granite, seed_oss, arcee, "
                "exaone4, gemma, olmoe"));
}

TEST(GgufFamiliesTest, OlmoesExpertsAreAsWideAsItsFeedForward) {
  GgufBuilder gguf = TinyOf("olmoe");
  EXPECT_THAT(ConfigError(gguf), HasSubstr("olmoe.expert_count"));
  gguf.Int("olmoe.expert_count", 4);
  gguf.Int("olmoe.expert_used_count", 2);
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["num_experts"], 4);
  EXPECT_FALSE(config.contains("num_local_experts"));
  EXPECT_EQ(config["norm_topk_prob"], false);
  gguf.Float("olmoe.attention.clamp_kqv", 8);
  EXPECT_THAT(ConfigError(gguf),
              HasSubstr("olmoe.attention.clamp_kqv: 8 is not supported, expected 0"));
}

TEST(GgufFamiliesTest, PhisWindowIsOfEveryLayer) {
  GgufBuilder gguf = TinyOf("phi3");
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["model_type"], "phi3");
  EXPECT_EQ(config["sliding_window"], nullptr);
  EXPECT_FALSE(config.contains("attention_bias"));
  GgufBuilder none = gguf;
  none.Int("phi3.attention.sliding_window", 0);
  EXPECT_EQ(ValueOrThrow(ConfigOf(none)).config["sliding_window"], nullptr);
  gguf.Int("phi3.attention.sliding_window", 2047);
  EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).config["sliding_window"], 2047);
  gguf.Int("phi3.attention.sliding_window_pattern", 2);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("sliding_window_pattern: is not understood"));
}

// Every fourth layer, in llama.cpp and in no file.
TEST(GgufFamiliesTest, SmolLm3sLayersThatAreNotTurned) {
  GgufBuilder gguf = TinyOf("smollm3");
  const Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["no_rope_layers"], Json({1, 1, 1, 0, 1, 1, 1, 0, 1, 1, 1, 0}));
  EXPECT_EQ(config["no_rope_layer_interval"], 4);
  gguf.Int("smollm3.attention.sliding_window", 16);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("sliding_window: is not understood"));
}

TEST(GgufFamiliesTest, AnOlmo2WithAWindowIsOlmo3) {
  GgufBuilder gguf = TinyOf("olmo2");
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["model_type"], "olmo2");
  EXPECT_EQ(config["rope_theta"], 10000.0);
  EXPECT_FALSE(config.contains("sliding_window"));
  GgufBuilder none = gguf;
  none.Int("olmo2.attention.sliding_window", 0);
  EXPECT_EQ(ValueOrThrow(ConfigOf(none)).config["model_type"], "olmo2");
  gguf.Int("olmo2.attention.sliding_window", 4096);
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["model_type"], "olmo3");
  EXPECT_EQ(config["architectures"], Json({"Olmo3ForCausalLM"}));
  EXPECT_EQ(config["sliding_window"], 4096);
  EXPECT_EQ(config["layer_types"][2], "sliding_attention");
  EXPECT_EQ(config["layer_types"][3], "full_attention");
  none.Float("olmo2.rope.freq_base_swa", 10000);
  EXPECT_THAT(ConfigError(none), HasSubstr("rope.freq_base_swa: is not understood"));
  GgufBuilder below = TinyOf("olmo2");
  below.Key("olmo2.attention.sliding_window", GgufType::kInt32, testing::Bytes<int32_t>(-1));
  EXPECT_THAT(ConfigError(below), HasSubstr("sliding_window: -1 is no number of tokens"));
}

TEST(GgufFamiliesTest, Exaones) {
  GgufBuilder gguf = TinyOf("exaone4");
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["sliding_window"], nullptr);
  EXPECT_EQ(config["layer_types"], Json(std::vector<std::string>(12, "full_attention")));
  gguf.Int("exaone4.attention.sliding_window", 16);
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["sliding_window"], 16);
  EXPECT_EQ(config["layer_types"][3], "full_attention");
  EXPECT_EQ(config["layer_types"][4], "sliding_attention");
  // What llama.cpp knows the 32B model by.
  gguf = TinyOf("exaone4");
  gguf.Drop("exaone4.block_count");
  gguf.Int("exaone4.block_count", 64);
  EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).config["sliding_window"], 4096);
  gguf.Int("exaone4.nextn_predict_layers", 1);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("nextn_predict_layers: is not understood"));
}

TEST(GgufFamiliesTest, GranitesFactors) {
  GgufBuilder gguf = TinyOf("granite");
  EXPECT_THAT(ConfigError(gguf), HasSubstr("key granite.logit_scale: is missing"));
  gguf.Float("granite.logit_scale", 8);
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["attention_multiplier"], 1 / std::sqrt(6.0));  // not 1, as in a config.json
  EXPECT_EQ(config["embedding_multiplier"], 1.0);
  EXPECT_EQ(config["residual_multiplier"], 1.0);
  EXPECT_EQ(config["logits_scaling"], 8.0);
  gguf.Float("granite.attention.scale", 0.0078125f);
  gguf.Float("granite.embedding_scale", 12);
  gguf.Float("granite.residual_scale", 0.22f);
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["attention_multiplier"], 0.0078125);
  EXPECT_EQ(config["embedding_multiplier"], 12.0);
  EXPECT_EQ(config["residual_multiplier"], 0.22);
  gguf.Bool("granite.rope.scaling.finetuned", false);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("rope.scaling.finetuned: false is not supported"));
}

// A Granite 4 of attention alone says the sizes of layers that it does not have.
TEST(GgufFamiliesTest, AGranite4WithoutStateSpace) {
  GgufBuilder gguf = TinyOf("granite");
  gguf.Float("granite.logit_scale", 8);
  gguf.Int("granite.expert_count", 0);
  gguf.Int("granite.expert_used_count", 0);
  gguf.Bool("granite.rope.scaling.finetuned", true);
  for (const char* size :
       {"conv_kernel", "group_count", "inner_size", "state_size", "time_step_rank"})
    gguf.Int(std::string("granite.ssm.") + size, 4);
  GgufBuilder other = gguf;
  gguf.Int("granite.expert_shared_feed_forward_length", 16);
  EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).config["model_type"], "granite");
  other.Int("granite.expert_shared_feed_forward_length", 8);
  EXPECT_THAT(ConfigError(other),
              HasSubstr("expert_shared_feed_forward_length: 8 is not supported, expected 16"));
  gguf.Drop("granite.expert_count");
  gguf.Int("granite.expert_count", 4);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("expert_count: 4 is not supported, expected 0"));
}

TEST(GgufFamiliesTest, BiasesAreReadFromTheTensors) {
  GgufBuilder gguf = TinyOf("seed_oss");
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["attention_bias"], false);
  EXPECT_EQ(config["attention_out_bias"], false);
  EXPECT_EQ(config["residual_dropout"], 0.0);  // transformers' default is another
  gguf.Tensor("blk.0.attn_q.bias", {12}, std::vector<float>(12, 0.5f));
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["attention_bias"], true);
  EXPECT_EQ(config["attention_out_bias"], false);
  gguf.Tensor("blk.0.attn_output.bias", {8}, std::vector<float>(8, 0.5f));
  EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).config["attention_out_bias"], true);
}

TEST(GgufFamiliesTest, ArceesFeedForward) {
  EXPECT_EQ(ValueOrThrow(ConfigOf(TinyOf("arcee"))).config["hidden_act"], "relu2");
}

}  // namespace
}  // namespace keel::model
