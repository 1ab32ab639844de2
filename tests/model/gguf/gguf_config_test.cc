// What of a GGUF file's settings becomes config.json, and what is refused.

#include "model/gguf/gguf_config.h"

#include <gmock/gmock.h>

#include <cmath>
#include <numbers>

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
              HasSubstr("key llama.expert_count: 8 is not supported"));
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
