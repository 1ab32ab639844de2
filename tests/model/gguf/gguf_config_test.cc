// What of a GGUF file's settings becomes config.json, and what is refused.

#include "model/gguf/gguf_config.h"

#include <gmock/gmock.h>

#include "tests/model/gguf/gguf_configs.h"

namespace keel::model {
namespace {

using testing::ConfigError;
using testing::ConfigOf;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::TinyGguf;

TEST(GgufConfigTest, Llama) {
  const GgufConfig config = ValueOrThrow(ConfigOf(TinyGguf()));
  EXPECT_EQ(config.head_dim, 4);
  EXPECT_EQ(config.config["model_type"], "llama");
  EXPECT_EQ(config.config["num_key_value_heads"], 1);
  EXPECT_EQ(config.config["rms_norm_eps"], 1e-5);  // not the nearest float's digits
  EXPECT_EQ(config.config["vocab_size"], 4);
  EXPECT_EQ(config.config["tie_word_embeddings"], true);
  EXPECT_EQ(config.config["eos_token_id"], 3);
  EXPECT_EQ(config.config["bos_token_id"], nullptr);  // not the family's
  EXPECT_TRUE(config.config.contains("pad_token_id"));
  EXPECT_FALSE(config.generation.contains("bos_token_id"));
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
  EXPECT_THAT(with([](GgufBuilder& g) {
                g.Drop("llama.block_count");
                g.Int("llama.block_count", 4'000'000'000);
              }),
              HasSubstr("key llama.block_count: 4000000000 is no number of layers"));
  EXPECT_THAT(with([](GgufBuilder& g) { g.tensors.clear(); }),
              HasSubstr("has no tensor token_embd.weight"));
}

}  // namespace
}  // namespace keel::model
