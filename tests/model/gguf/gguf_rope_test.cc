// How a GGUF file says that positions turn queries and keys, in config.json.

#include "model/gguf/gguf_rope.h"

#include <gmock/gmock.h>

#include <algorithm>
#include <cmath>
#include <cstdint>
#include <limits>
#include <numbers>
#include <utility>
#include <vector>

#include "tests/model/gguf/gguf_configs.h"

namespace keel::model {
namespace {

using testing::ConfigError;
using testing::ConfigOf;
using testing::GgufBuilder;
using ::testing::HasSubstr;
using testing::TinyGguf;
using testing::TinyOf;

// The parameters of Llama 3's rotation are found again from what they gave.
TEST(GgufRopeTest, FactorsOfLlama3) {
  GgufBuilder gguf = TinyGguf();
  gguf.Drop("llama.rope.freq_base");
  gguf.Float("llama.rope.freq_base", 500000);
  gguf.Int("llama.attention.key_length", 64);
  std::vector<float> factors;
  for (int i = 0; i < 32; ++i) {
    const double length = 2 * std::numbers::pi * std::pow(500000.0, i / 32.0);
    const double smooth = std::clamp((8192 / length - 1) / 3, 0.0, 1.0);
    factors.push_back(static_cast<float>(1 / ((1 - smooth) / 32 + smooth)));
  }
  const Json rope = ValueOrThrow(ConfigOf(gguf, {.scaled = factors})).config["rope_scaling"];
  EXPECT_EQ(rope["rope_type"], "llama3");
  EXPECT_EQ(rope["factor"], 32.0);
  EXPECT_EQ(rope["original_max_position_embeddings"], 8192);
  factors[20] *= 1.01f;
  EXPECT_THAT(ConfigError(gguf, {.scaled = factors}),
              HasSubstr("tensor rope_freqs.weight: is no scaling"));
  factors.pop_back();
  EXPECT_THAT(ConfigError(gguf, {.scaled = factors}), HasSubstr("31 values, expected 32"));
}

TEST(GgufRopeTest, Yarn) {
  GgufBuilder gguf = TinyOf("qwen3");
  gguf.Text("qwen3.rope.scaling.type", "yarn");
  gguf.Float("qwen3.rope.scaling.factor", 4);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("original_context_length: is missing"));
  gguf.Int("qwen3.rope.scaling.original_context_length", 16);
  Json rope = ValueOrThrow(ConfigOf(gguf)).config["rope_scaling"];
  EXPECT_EQ(
      rope,
      Json({{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 16}}));
  gguf.Float("qwen3.rope.scaling.yarn_attn_factor", 1.2f);
  gguf.Float("qwen3.rope.scaling.yarn_beta_fast", 24);
  gguf.Float("qwen3.rope.scaling.yarn_beta_slow", 2);
  rope = ValueOrThrow(ConfigOf(gguf)).config["rope_scaling"];
  EXPECT_EQ(rope["attention_factor"], 1.2);
  EXPECT_EQ(rope["beta_fast"], 24.0);
  EXPECT_EQ(rope["beta_slow"], 2.0);
  gguf.Float("qwen3.rope.scaling.yarn_ext_factor", 0.5);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("yarn_ext_factor: 0.5 is not supported, expected 1"));
  gguf.Drop("qwen3.rope.scaling.yarn_ext_factor");
  gguf.Drop("qwen3.rope.scaling.type");
  gguf.Text("qwen3.rope.scaling.type", "none");
  EXPECT_THAT(ConfigError(gguf), HasSubstr("yarn_attn_factor: is not understood"));
}

// As llama.cpp takes it.
TEST(GgufRopeTest, AFactorWithoutATypeIsLinear) {
  GgufBuilder gguf = TinyGguf();
  gguf.Float("llama.rope.scaling.factor", 4);
  EXPECT_EQ(ValueOrThrow(ConfigOf(gguf)).config["rope_scaling"],
            Json({{"rope_type", "linear"}, {"factor", 4.0}}));
  for (const float none : {0.0f, 1.0f}) {
    gguf = TinyGguf();
    gguf.Float("llama.rope.scaling.factor", none);
    EXPECT_FALSE(ValueOrThrow(ConfigOf(gguf)).config.contains("rope_scaling"));
  }
}

// OLMo 3's layers with a window turn by a base of their own, which is never stretched.
TEST(GgufRopeTest, TwoRotations) {
  GgufBuilder gguf = TinyOf("olmo2");
  gguf.Int("olmo2.attention.sliding_window", 16);
  gguf.Float("olmo2.rope.freq_base", 500000);
  gguf.Text("olmo2.rope.scaling.type", "yarn");
  gguf.Float("olmo2.rope.scaling.factor", 8);
  gguf.Int("olmo2.rope.scaling.original_context_length", 16);
  Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["rope_parameters"]["full_attention"]["factor"], 8.0);
  EXPECT_EQ(config["rope_parameters"]["full_attention"]["rope_theta"], 500000.0);
  EXPECT_EQ(config["rope_parameters"]["sliding_attention"],
            Json({{"rope_type", "default"}, {"rope_theta", 500000.0}}));
  EXPECT_FALSE(config.contains("rope_theta"));
  gguf.Float("olmo2.rope.freq_base_swa", 10000);
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["rope_parameters"]["sliding_attention"]["rope_theta"], 10000.0);
  gguf = TinyOf("olmo2");
  gguf.Int("olmo2.attention.sliding_window", 16);
  config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(config["rope_parameters"]["full_attention"],
            Json({{"rope_type", "default"}, {"rope_theta", 10000.0}}));
}

constexpr const char* kSharpening = "phi3.rope.scaling.attn_factor";

// Heads of 6 dims, a context of 64 that was 16.
GgufBuilder LongPhi() {
  GgufBuilder gguf = TinyOf("phi3");
  gguf.Int("phi3.rope.scaling.original_context_length", 16);
  gguf.Float(kSharpening, static_cast<float>(std::sqrt(1.5)));  // sqrt(1 + ln 4 / ln 16)
  return gguf;
}

TEST(GgufRopeTest, Longrope) {
  const GgufRopeFactors factors{.longs = {1.5f, 2.1f, 4}, .shorts = {1, 1.02f, 1.1f}};
  GgufBuilder gguf = LongPhi();
  Json config = ValueOrThrow(ConfigOf(gguf, factors)).config;
  EXPECT_EQ(config["original_max_position_embeddings"], 16);
  EXPECT_FALSE(config.contains("partial_rotary_factor"));
  // The sharpening follows from the two contexts, as in Phi-3's own files.
  EXPECT_EQ(config["rope_scaling"], Json({{"type", "longrope"},
                                          {"long_factor", {1.5, 2.1, 4.0}},
                                          {"short_factor", {1.0, 1.02, 1.1}}}));
  gguf.Drop(kSharpening);
  EXPECT_THAT(ConfigError(gguf, factors), HasSubstr("attn_factor: is missing, expected a number"));
  gguf.Float(kSharpening, 1.3f);
  config = ValueOrThrow(ConfigOf(gguf, factors)).config;
  EXPECT_EQ(config["rope_scaling"]["attention_factor"], 1.3);
  // A context that did not grow.
  gguf = TinyOf("phi3");
  gguf.Float(kSharpening, 1);
  config = ValueOrThrow(ConfigOf(gguf, factors)).config;
  EXPECT_EQ(config["original_max_position_embeddings"], 64);
  EXPECT_FALSE(config["rope_scaling"].contains("attention_factor"));
}

TEST(GgufRopeTest, APartOfAHeadTurns) {
  GgufBuilder gguf = TinyOf("phi3");
  gguf.Int("phi3.rope.dimension_count", 4);
  const Json config = ValueOrThrow(ConfigOf(gguf)).config;
  EXPECT_EQ(static_cast<int64_t>(6 * config["partial_rotary_factor"].get<double>()), 4);
  gguf.Float(kSharpening, 1);
  const GgufRopeFactors factors{.longs = {1, 2, 4}, .shorts = {1, 1, 1}};
  EXPECT_THAT(ConfigError(gguf, factors),
              HasSubstr("tensor rope_factors_long.weight: 3 values, expected 2"));
  for (const uint32_t dims : {0u, 3u, 8u}) {
    gguf = TinyOf("phi3");
    gguf.Int("phi3.rope.dimension_count", dims);
    EXPECT_THAT(ConfigError(gguf), HasSubstr("is no number of dims of a head of 6"));
  }
  // Every part of every size is found again.
  for (uint32_t head = 2; head <= 128; head += 2) {
    for (uint32_t dims = 2; dims < head; dims += 2) {
      gguf = TinyOf("phi3");
      gguf.Drop("phi3.attention.key_length");
      gguf.Int("phi3.attention.key_length", head);
      gguf.Int("phi3.rope.dimension_count", dims);
      const double part = ValueOrThrow(ConfigOf(gguf)).config["partial_rotary_factor"];
      ASSERT_EQ(static_cast<int64_t>(head * part), dims) << head;
    }
  }
}

TEST(GgufRopeTest, FactorsOfLongropeThatDoNotFit) {
  const std::vector<float> three = {1, 2, 4};
  const auto error = [&](std::vector<float> longs, std::vector<float> shorts) {
    return ConfigError(LongPhi(), {.longs = std::move(longs), .shorts = std::move(shorts)});
  };
  EXPECT_THAT(error(three, {}), HasSubstr("tensor rope_factors_short.weight: is missing"));
  EXPECT_THAT(error({}, three), HasSubstr("tensor rope_factors_long.weight: is missing"));
  EXPECT_THAT(error(three, {1, 2}),
              HasSubstr("tensor rope_factors_short.weight: 2 values, expected 3"));
  EXPECT_THAT(error({1, 0, 4}, three),
              HasSubstr("tensor rope_factors_long.weight: 0 is no factor"));
  EXPECT_THAT(error({1, std::numeric_limits<float>::quiet_NaN(), 4}, three),
              HasSubstr("is no factor of a rotation"));
  EXPECT_THAT(error({}, {}), HasSubstr("attn_factor: is there, and tensors "
                                       "rope_factors_long.weight and rope_factors_short.weight "
                                       "are missing"));
  GgufBuilder gguf = LongPhi();
  gguf.Text("phi3.rope.scaling.type", "yarn");
  EXPECT_THAT(ConfigError(gguf, {.longs = three, .shorts = three}),
              HasSubstr("\"yarn\" stands beside tensor rope_factors_long.weight"));
  gguf.Drop(kSharpening);
  EXPECT_THAT(ConfigError(gguf), HasSubstr("scaling.type: is there, and tensors"));
  gguf = LongPhi();
  gguf.Drop("phi3.rope.scaling.original_context_length");
  gguf.Int("phi3.rope.scaling.original_context_length", 0);
  EXPECT_THAT(ConfigError(gguf, {.longs = three, .shorts = three}),
              HasSubstr("original_context_length: expected 1 or more"));
}

}  // namespace
}  // namespace keel::model
