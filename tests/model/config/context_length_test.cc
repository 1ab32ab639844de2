#include "model/config/context_length.h"

#include <gmock/gmock.h>

#include "common/json.h"

namespace keel::model {
namespace {

using ::testing::HasSubstr;

HfConfig ConfigOf(std::string_view type, int64_t positions, const Json& rope) {
  Json json = {{"model_type", type},
               {"hidden_size", 32},
               {"intermediate_size", 48},
               {"num_hidden_layers", 2},
               {"num_attention_heads", 4},
               {"num_key_value_heads", 2},
               {"head_dim", 8},
               {"vocab_size", 64},
               {"sliding_window", nullptr},
               {"rope_scaling", rope},
               {"max_position_embeddings", positions}};
  return ValueOrThrow(ParseHfConfig(json, "config.json"));
}

struct Stretch {
  Json rope;
  int64_t positions;
  int64_t trained;
  int64_t generated;
};

// The third column is vLLM's derived_max_model_len, but for the last two rows, in which the file
// promises more than the product.
TEST(ContextLength, IsStretchedAsItsRotationIs) {
  const Json factors = {1.0, 1.5, 2.0, 3.0};
  const Stretch cases[] = {
      {nullptr, 4096, 4096, 4096},
      {{{"rope_type", "default"}}, 4096, 4096, 4096},
      {{{"type", "linear"}, {"factor", 8.0}}, 2048, 16384, 16384},
      {{{"rope_type", "linear"}, {"factor", 2.5}}, 1001, 2502, 2502},
      // Generation ends with the context that all texts are turned alike in.
      {{{"type", "dynamic"}, {"factor", 2.0}}, 4096, 8192, 4096},
      // As Qwen2.5's and Qwen3's pages have it.
      {{{"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}},
       32768,
       131072,
       131072},
      {{{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}},
       40960,
       131072,
       131072},
      {{{"rope_type", "yarn"}, {"factor", 40.0}, {"original_max_position_embeddings", 4096}},
       163840,
       163840,
       163840},
      {{{"rope_type", "yarn"}, {"original_max_position_embeddings", 4096}}, 16384, 16384, 16384},
      {{{"rope_type", "llama3"},
        {"factor", 8.0},
        {"low_freq_factor", 1.0},
        {"high_freq_factor", 4.0},
        {"original_max_position_embeddings", 8192}},
       131072,
       131072,
       131072},
      {{{"rope_type", "longrope"},
        {"short_factor", factors},
        {"long_factor", factors},
        {"factor", 32.0},
        {"original_max_position_embeddings", 4096}},
       65536,
       65536,
       65536},
      {{{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 4096}},
       16384,
       16384,
       16384},
      {{{"rope_type", "linear"}, {"factor", 0.5}}, 4096, 4096, 4096},
  };
  for (const Stretch& c : cases) {
    const HfConfig config = ConfigOf("llama", c.positions, c.rope);
    EXPECT_EQ(LongestTrained(config).tokens, c.trained) << c.rope;
    EXPECT_EQ(LongestGenerated(config).tokens, c.generated) << c.rope;
    // What is exported promises the same.
    const HfConfig again = ValueOrThrow(ParseHfConfig(ToHfJson(config, DType::kF32), "c"));
    EXPECT_EQ(LongestTrained(again).tokens, c.trained) << c.rope;
  }
}

// 131072 of Gemma 3's files is what its linear factor of 8 has made of 16384.
TEST(ContextLength, AFamilyMayCountTheStretchedOne) {
  const Json linear = {{"rope_type", "linear"}, {"factor", 8.0}};
  EXPECT_EQ(LongestTrained(ConfigOf("gemma3_text", 131072, linear)).tokens, 131072);
  EXPECT_EQ(LongestTrained(ConfigOf("gemma2", 8192, linear)).tokens, 65536);
}

TEST(ContextLength, SaysWhereItIsFrom) {
  EXPECT_EQ(LongestTrained(ConfigOf("llama", 4096, nullptr)).reason,
            "the model's max_position_embeddings is 4096");
  const Json yarn = {
      {"type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(
      LongestTrained(ConfigOf("qwen3", 40960, yarn)).reason,
      "the model's context is 131072: original_max_position_embeddings 32768 times the factor "
      "4 of its rope_type yarn");
  const Json dynamic = {{"type", "dynamic"}, {"factor", 2.0}};
  EXPECT_THAT(LongestGenerated(ConfigOf("llama", 4096, dynamic)).reason,
              HasSubstr("max_position_embeddings is 4096, beyond which its rope_type dynamic"));
  // A file that promises more than the map can count is none of a model.
  const Json far = {{"type", "linear"}, {"factor", 1e6}};
  EXPECT_GT(LongestTrained(ConfigOf("llama", int64_t{1} << 40, far)).tokens, 0);
}

}  // namespace
}  // namespace keel::model
