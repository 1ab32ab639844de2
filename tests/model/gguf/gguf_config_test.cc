// What of a GGUF file's settings becomes config.json, and what is refused.

#include "model/gguf/gguf_config.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

#include "model/gguf/gguf_names.h"
#include "tests/model/gguf/gguf_builder.h"

namespace keel::model {
namespace {

using testing::BytesFile;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::TinyGguf;

Result<GgufConfig> ConfigOf(const GgufBuilder& gguf, const std::vector<float>& factors = {}) {
  const std::string bytes = gguf.Build();
  return ReadGgufConfig(ValueOrThrow(ReadGguf(BytesFile(bytes), "a.gguf")), factors);
}
std::string ConfigError(const GgufBuilder& gguf, const std::vector<float>& factors = {}) {
  const auto config = ConfigOf(gguf, factors);
  EXPECT_EQ(config.status().code(), StatusCode::kInvalidData);
  return config.status().message();
}

TEST(GgufConfigTest, Llama) {
  const GgufConfig config = ValueOrThrow(ConfigOf(TinyGguf()));
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.config["model_type"], "llama");
  EXPECT_EQ(config.config["num_key_value_heads"], 1);
  EXPECT_EQ(config.config["rms_norm_eps"], 1e-5);  // not the nearest float's digits
  EXPECT_EQ(config.config["vocab_size"], 4);
  EXPECT_EQ(config.config["tie_word_embeddings"], true);
  EXPECT_EQ(config.config["eos_token_id"], 3);
  EXPECT_FALSE(config.config.contains("bos_token_id"));
}

TEST(GgufConfigTest, SeveralEndsOfText) {
  GgufBuilder gguf = TinyGguf();
  gguf.Int("tokenizer.ggml.eot_token_id", 2);
  EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).generation["eos_token_id"], Json({3, 2}));
  gguf.Int("tokenizer.ggml.bos_token_id", 4);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("key tokenizer.ggml.bos_token_id: 4 is outside"));
}

TEST(GgufConfigTest, WhatIsNotUnderstoodIsRefused) {
  const auto with = [](const auto& change) {
    GgufBuilder gguf = TinyGguf();
    change(gguf);
    return ConfigError(gguf);
  };
  EXPECT_THAT(with([](GgufBuilder& g) { g.Float("llama.logit_scale", 2); }),
              HasSubstr("key llama.logit_scale: is not understood"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("llama.expert_count", 8); }),
              HasSubstr("key llama.expert_used_count: is missing"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("llama.rope.dimension_count", 2); }),
              HasSubstr("key llama.rope.dimension_count: 2 is not supported, expected 4"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Text("llama.rope.scaling.type", "longrope"); }),
              HasSubstr("key llama.rope.scaling.type: \"longrope\" is not supported"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("split.count", 3); }), HasSubstr("one of 3 parts"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Text("general.type", "adapter"); }),
              HasSubstr("key general.type: \"adapter\" is no model"));
  EXPECT_THAT(with([](GgufBuilder& g) {
                g.keys[0] = "";
                g.keys.erase(g.keys.begin());
              }),
              HasSubstr("key general.architecture: is missing"));
  EXPECT_THAT(with([](GgufBuilder& g) {
                g.keys.erase(g.keys.begin());
                g.Text("general.architecture", "mamba");
              }),
              HasSubstr("key general.architecture: \"mamba\" is not supported"));
  EXPECT_THAT(with([](GgufBuilder& g) {
                g.keys.erase(g.keys.begin() + 1);
                g.Text("llama.block_count", "many");
              }),
              HasSubstr("key llama.block_count: expected an integer, found the string \"many\""));
  EXPECT_THAT(with([](GgufBuilder& g) { g.tensors.clear(); }),
              HasSubstr("has no tensor token_embd.weight"));
}

GgufBuilder TinyOf(const std::string& architecture) {
  GgufBuilder gguf;
  gguf.Text("general.architecture", architecture);
  const auto key = [&](const char* name) { return architecture + "." + name; };
  gguf.Int(key("block_count"), 12);
  gguf.Int(key("context_length"), 64);
  gguf.Int(key("embedding_length"), 8);
  gguf.Int(key("feed_forward_length"), 16);
  gguf.Int(key("attention.head_count"), 2);
  gguf.Int(key("attention.key_length"), 6);
  gguf.Float(key("attention.layer_norm_rms_epsilon"), 1e-6f);
  gguf.Tensor("token_embd.weight", {8, 4}, std::vector<float>(32, 0.5f));
  return gguf;
}

TEST(GgufConfigTest, ALlamaWithExpertsIsMixtral) {
  GgufBuilder gguf = TinyOf("llama");
  gguf.Int("llama.expert_count", 4);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("key llama.expert_used_count: is missing"));
  gguf.Int("llama.expert_used_count", 2);
  const GgufConfig config = ValueOrThrow(ConfigOf(gguf));
  EXPECT_EQ(config.experts, 4);
  EXPECT_EQ(config.config["model_type"], "mixtral");
  EXPECT_EQ(config.config["num_local_experts"], 4);
  EXPECT_EQ(config.config["num_experts_per_tok"], 2);
  gguf.Int("llama.expert_feed_forward_length", 8);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("8 is not supported, expected 16"));
}

TEST(GgufConfigTest, ExpertsOfQwen) {
  GgufBuilder gguf = TinyOf("qwen3moe");
  gguf.Int("qwen3moe.expert_count", 4);
  gguf.Int("qwen3moe.expert_used_count", 3);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("expert_feed_forward_length: is missing"));
  gguf.Int("qwen3moe.expert_feed_forward_length", 12);
  const Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["num_experts"], 4);
  EXPECT_EQ(config["moe_intermediate_size"], 12);
  EXPECT_EQ(config["intermediate_size"], 16);
  EXPECT_EQ(config["norm_topk_prob"], true);
  const auto with = [&](const auto& change) {
    GgufBuilder changed = gguf;
    change(changed);
    return ConfigError(changed);
  };
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("qwen3moe.expert_shared_count", 1); }),
              HasSubstr("expert_shared_count: 1 is not supported, expected 0"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("qwen3moe.expert_gating_func", 2); }),
              HasSubstr("expert_gating_func: 2 is not supported, expected 1"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Bool("qwen3moe.expert_weights_norm", false); }),
              HasSubstr("expert_weights_norm: false is not supported"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Float("qwen3moe.expert_weights_scale", 2.5f); }),
              HasSubstr("expert_weights_scale: 2.5 is not supported"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.Int("qwen3moe.expert_group_count", 2); }),
              HasSubstr("expert_group_count: is not understood"));
}

// Tensors of experts go to a place each, of which they are one behind the other.
TEST(GgufConfigTest, StacksOfExperts) {
  GgufConfig config;
  config.family = GgufFamily::kQwen3Moe;
  config.experts = 3;
  GgufTensor stack{"blk.2.ffn_up_exps.weight", GgmlType::kF32, {3, 4, 8}, 64, 384};
  const std::vector<HfPlace> places = ValueOrThrow(HfPlacesOf(stack, config, "a.gguf"));
  ASSERT_EQ(places.size(), 3u);
  EXPECT_EQ(places[2].name, "model.layers.2.mlp.experts.2.up_proj.weight");
  const GgufTensor part = PartAt(places[2], stack);
  EXPECT_EQ(part.shape, (Dims{4, 8}));
  EXPECT_EQ(part.offset, 64 + 2 * 128);
  EXPECT_EQ(part.bytes, 128);
  config.experts = 4;
  EXPECT_THAT(HfPlacesOf(stack, config, "a.gguf").status().message(),
              HasSubstr("blk.2.ffn_up_exps.weight: expected a matrix for each of 4 experts"));
  config.experts = 0;
  EXPECT_THAT(HfPlacesOf(stack, config, "a.gguf").status().message(), HasSubstr("no place"));
  config.family = GgufFamily::kMixtral;
  config.head_dim = 4;
  config.experts = 3;
  const auto name = [&](const char* tensor) {
    GgufTensor of = stack;
    of.name = tensor;
    of.shape = {4, 8};
    return ValueOrThrow(HfPlacesOf(of, config, "")).front();
  };
  EXPECT_EQ(name("blk.0.ffn_gate_inp.weight").name, "model.layers.0.block_sparse_moe.gate.weight");
  EXPECT_TRUE(name("blk.0.ffn_gate_inp.weight").router);
  EXPECT_EQ(name("blk.0.ffn_down.1.weight").name,
            "model.layers.0.block_sparse_moe.experts.1.w2.weight");
  EXPECT_EQ(name("blk.0.attn_q.weight").mixed_head_rows, 4);
}

TEST(GgufConfigTest, Gemma) {
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
TEST(GgufConfigTest, TheLargestGemmas) {
  for (const auto& [name, layers] : {std::pair("gemma2", 46u), std::pair("gemma3", 62u)}) {
    GgufBuilder gguf = TinyOf(name);
    gguf.keys.erase(gguf.keys.begin() + 1);
    gguf.Int(std::string(name) + ".block_count", layers);
    gguf.Int(std::string(name) + ".attention.sliding_window", 16);
    EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).config["query_pre_attn_scalar"], 4);
  }
}

// One value a layer, as newer files have it.
TEST(GgufConfigTest, WindowsLayerByLayer) {
  GgufBuilder gguf = TinyOf("gemma3");
  gguf.Int("gemma3.attention.sliding_window", 16);
  GgufBuilder other = gguf;
  std::string layers, odd;
  for (int i = 0; i < 12; ++i) {
    layers += std::string(1, (i + 1) % 6 != 0 ? 1 : 0);
    odd += std::string(1, i % 2 == 0 ? 1 : 0);
  }
  gguf.Array("gemma3.attention.sliding_window_pattern", GgufType::kBool, 12, layers);
  EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).config["layer_types"][5], "full_attention");
  other.Array("gemma3.attention.sliding_window_pattern", GgufType::kBool, 12, odd);
  EXPECT_THAT(ConfigError(other),
              HasSubstr("sliding_window_pattern: expected 12 layers, every 6."));
}

// The parameters of Llama 3's rotation are found again from what they gave.
TEST(GgufConfigTest, RopeFactors) {
  GgufBuilder gguf = TinyGguf();
  gguf.keys.erase(gguf.keys.begin() + 8);
  gguf.Float("llama.rope.freq_base", 500000);
  gguf.Int("llama.attention.key_length", 64);
  std::vector<float> factors;
  for (int i = 0; i < 32; ++i) {
    const double length = 2 * std::numbers::pi * std::pow(500000.0, i / 32.0);
    const double smooth = std::clamp((8192 / length - 1) / 3, 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / 32 + smooth)));
  }
  const Json rope = ValueOrThrow(ConfigOf(gguf, factors)).config["rope_scaling"];
  EXPECT_EQ(rope["rope_type"], "llama3");
  EXPECT_EQ(rope["factor"], 32.0);
  EXPECT_EQ(rope["original_max_position_embeddings"], 8192);
  factors[20] *= 1.01f;
  EXPECT_THAT(ConfigError(gguf, factors), HasSubstr("tensor rope_freqs.weight: is no scaling"));
  factors.pop_back();
  EXPECT_THAT(ConfigError(gguf, factors), HasSubstr("31 values, expected 32"));
}

}  // namespace
}  // namespace keel::model
