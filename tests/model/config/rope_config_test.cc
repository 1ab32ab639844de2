#include "model/config/rope_config.h"

#include <gmock/gmock.h>

#include <string>
#include <utility>
#include <vector>

#include "model/config/hf_config.h"
#include "tests/model/config/small_config.h"

namespace keel::model {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

// To transformers a null is no, and a key that is left out yes.
TEST(RopeConfig, TruncateOfYarnMayBeNull) {
  Json json = Small();
  Json rope = {{"rope_type", "yarn"}, {"factor", 4.0}, {"original_max_position_embeddings", 64}};
  const auto truncate = [&] {
    json["rope_scaling"] = rope;
    return ValueOrThrow(ParseHfConfig(json, "c")).rope.truncate;
  };
  EXPECT_TRUE(truncate());
  rope["truncate"] = nullptr;
  EXPECT_FALSE(truncate());
  rope["truncate"] = true;
  EXPECT_TRUE(truncate());
}

// As in transformers: the stretched context is the file's own where no other is named.
TEST(RopeConfig, TheContextBeforeTheStretchIsTheFilesWhereNoneIsNamed) {
  for (const char* type : {"yarn", "llama3"}) {
    SCOPED_TRACE(type);
    Json json = Small();
    json["rope_scaling"] = {{"rope_type", type}, {"factor", 4.0}};
    if (std::string_view(type) == "llama3") {
      json["rope_scaling"]["low_freq_factor"] = 1.0;
      json["rope_scaling"]["high_freq_factor"] = 4.0;
    }
    json["max_position_embeddings"] = 96;
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).rope.original_positions, 96);
    json.erase("max_position_embeddings");
    EXPECT_THAT(ParseHfConfig(json, "c").status().message(),
                HasSubstr("original_max_position_embeddings: missing"));
  }
}

// As Phi-4-mini-instruct has it.
TEST(RopeConfig, TheContextBeforeTheStretchStandsOutsideTheMap) {
  const std::vector<double> factors(48, 1.25);
  Json json = {{"model_type", "phi3"},
               {"hidden_size", 3072},
               {"intermediate_size", 8192},
               {"num_hidden_layers", 32},
               {"num_attention_heads", 24},
               {"num_key_value_heads", 8},
               {"vocab_size", 200064},
               {"max_position_embeddings", 131072},
               {"original_max_position_embeddings", 4096},
               {"partial_rotary_factor", 0.75},
               {"sliding_window", 262144},
               {"tie_word_embeddings", true},
               {"rope_theta", 10000.0},
               {"rope_scaling",
                {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}}}};
  const auto config = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(config.rope.type, RopeType::kLongrope);
  EXPECT_EQ(config.rope.RotatedDims(config.head_dim), 96);
  EXPECT_EQ(config.rope.original_positions, 4096);
  EXPECT_NEAR(config.rope.attention_factor, 1.1902380714238083,
              1e-12);  // sqrt(1 + ln 32 / ln 4096)
  EXPECT_EQ(config.Layer(31).window, 262144);
  EXPECT_NEAR(static_cast<double>(config.NumParameters()), 3.836e9, 1e6);
  // What a map says beside it does not count; without the factor the ratio of the two is it.
  json["rope_scaling"]["original_max_position_embeddings"] = 8192;
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).Digest(), config.Digest());
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(ToHfJson(config, DType::kBF16, &json), "c")).Digest(),
            config.Digest());
  json.erase("max_position_embeddings");
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(),
              HasSubstr("max_position_embeddings: missing"));
}

// What is left out would be guessed, and what is not looked at would be another model's.
TEST(RopeConfig, EveryWayToSayHowPositionsTurnIsReadOrRefused) {
  const auto message = [](const char* key, const Json& value) {
    Json json = Small();
    json["rope_scaling"] = nullptr;
    json[key] = value;
    const auto config = ParseHfConfig(json, "config.json");
    return config.ok() ? std::string() : config.status().message();
  };
  const Json whole = {{"rope_type", "llama3"},
                      {"factor", 8.0},
                      {"low_freq_factor", 1.0},
                      {"high_freq_factor", 4.0},
                      {"original_max_position_embeddings", 64}};
  EXPECT_EQ(message("rope_scaling", whole), "");
  EXPECT_EQ(message("rope_parameters", whole), "");
  for (const char* key : {"factor", "low_freq_factor", "high_freq_factor"}) {
    Json part = whole;
    part.erase(key);
    EXPECT_THAT(message("rope_scaling", part), HasSubstr(key));
  }
  EXPECT_THAT(message("rope_parameters", {{"full_attention", {{"rope_theta", 5e5}}}}),
              HasSubstr("full_attention"));
  EXPECT_THAT(message("partial_rotary_factor", 0.5), HasSubstr("partial_rotary_factor"));
  EXPECT_THAT(message("rope_parameters", {{"partial_rotary_factor", 0.5}}),
              HasSubstr("partial_rotary_factor"));
  Json both = Small();
  both["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", 1e4}};
  both["rope_scaling"] = whole;
  EXPECT_FALSE(ParseHfConfig(both, "config.json").ok());
}

TEST(RopeConfig, LayersOfExaoneThatLackTheWindowAreNotTurned) {
  const auto parse = [](const Json& more) {
    Json json = Small();
    json.update({{"model_type", "exaone4"}, {"num_key_value_heads", 2}, {"num_hidden_layers", 2}});
    json.update(more);
    return ParseHfConfig(json, "c.json");
  };
  const auto turned = [](const HfConfig& config) {
    std::vector<bool> layers;
    for (int64_t i = 0; i < 2; ++i) layers.push_back(config.Layer(i).rope != RopeChoice::kNone);
    return layers;
  };
  const Json whole = {"full_attention", "full_attention"};
  const Json mixed = {"full_attention", "sliding_attention"};
  for (const auto& [json, expected] :
       {std::pair(Json{{"sliding_window", 8}, {"sliding_window_pattern", 2}},
                  std::vector<bool>{true, false}),
        std::pair(Json{{"sliding_window", 8}, {"layer_types", mixed}},
                  std::vector<bool>{false, true}),
        std::pair(
            Json{{"sliding_window", 8}, {"sliding_window_pattern", "LLLG"}, {"layer_types", whole}},
            std::vector<bool>{false, false}),
        std::pair(
            Json{
                {"sliding_window", nullptr}, {"sliding_window_pattern", 0}, {"layer_types", whole}},
            std::vector<bool>{true, true})}) {
    const HfConfig config = ValueOrThrow(parse(json));
    EXPECT_EQ(turned(config), expected) << json;
    const Json written = ToHfJson(config, DType::kF32);
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest()) << written;
  }
  EXPECT_THAT(parse({{"layer_types", whole}}).status().message(),
              HasSubstr("c.json: sliding_window: missing"));
  EXPECT_THAT(parse({{"sliding_window", nullptr}}).status().message(),
              HasSubstr("layer_types: missing"));
  EXPECT_THAT(parse({{"sliding_window", 8}, {"sliding_window_pattern", "LLLG"}}).status().message(),
              HasSubstr("layer_types: missing"));
}

// Its layers with a window turn by their own map whether or not the file says how long that is.
TEST(RopeConfig, OfTwoRotationsEachHasItsLayersAndItsTheta) {
  for (const char* family : {"gemma3_text", "olmo3"}) {
    Json json = Small();
    json["model_type"] = family;
    json["num_key_value_heads"] = 1;
    json["num_hidden_layers"] = 6;
    json["layer_types"] = {"sliding_attention", "full_attention",    "sliding_attention",
                           "full_attention",    "sliding_attention", "full_attention"};
    json["rope_theta"] = 777.0;
    json["rope_parameters"] = {{"full_attention", {{"rope_type", "linear"}, {"factor", 2.0}}},
                               {"sliding_attention", {{"rope_theta", 55.0}}}};
    const auto config = ValueOrThrow(ParseHfConfig(json, "c"));
    EXPECT_EQ(config.Layer(0).rope, RopeChoice::kLocal) << family;
    EXPECT_EQ(config.Layer(1).rope, RopeChoice::kMain) << family;
    EXPECT_EQ(config.rope.theta, 777) << family;
    ASSERT_TRUE(config.local_rope.has_value()) << family;
    EXPECT_EQ(config.local_rope->theta, 55) << family;
  }
}

// transformers computes another model than these say, without a word.
TEST(RopeConfig, WhatIsPassedOverOfTwoRotationsIsRefused) {
  for (const char* family : {"gemma3_text", "olmo3"}) {
    const auto message = [&](const char* key, const Json& value) {
      Json json = Small();
      json["model_type"] = family;
      json["num_key_value_heads"] = 1;
      json[key] = value;
      const auto config = ParseHfConfig(json, "c");
      return config.ok() ? std::string() : config.status().message();
    };
    const Json linear = {{"factor", 2.0}};
    Json rope = linear;
    rope["rope_type"] = "linear";
    EXPECT_EQ(message("rope_scaling", rope), "") << family;
    rope["type"] = "linear";
    EXPECT_EQ(message("rope_scaling", rope), "") << family;
    rope.erase("rope_type");
    EXPECT_THAT(message("rope_scaling", rope), HasSubstr("type: expected rope_type in its place"));
    EXPECT_EQ(message("rope_scaling", {{"type", "default"}}), "") << family;
    EXPECT_EQ(message("rope_parameters", {{"full_attention", rope}}), "") << family;
    Json yarn = {{"rope_type", "yarn"}, {"factor", 2.0}, {"original_max_position_embeddings", 8}};
    for (const Json& truncate : {Json(false), Json(nullptr)}) {
      yarn["truncate"] = truncate;
      for (const std::string& said :
           {message("rope_scaling", yarn), message("rope_parameters", {{"full_attention", yarn}})})
        EXPECT_THAT(said, HasSubstr("truncate: expected true or no such key")) << family;
    }
    yarn["truncate"] = true;
    EXPECT_EQ(message("rope_scaling", yarn), "") << family;
  }
}

// Every family of transformers has another one where a file says nothing.
TEST(RopeConfig, AContextByWhichPositionsTurnMustBeThere) {
  const std::vector<double> factors(2, 1.5);
  const Json longrope = {{"rope_type", "longrope"},
                         {"original_max_position_embeddings", 64},
                         {"short_factor", factors},
                         {"long_factor", factors}};
  const Json yarn = {{"rope_type", "yarn"}, {"original_max_position_embeddings", 64}};
  for (Json rope : {Json{{"rope_type", "dynamic"}, {"factor", 2.0}}, yarn, longrope}) {
    Json json = Small();
    json["rope_scaling"] = rope;
    EXPECT_THAT(ParseHfConfig(json, "c.json").status().message(),
                HasSubstr("c.json: max_position_embeddings: missing, expected a number, for "
                          "rope_type " +
                          rope["rope_type"].get<std::string>()));
    EXPECT_THAT(ParseHfConfig(json, "c.json").status().message(), Not(HasSubstr("factor:")));
    json["max_position_embeddings"] = 512;
    EXPECT_TRUE(ParseHfConfig(json, "c.json").ok());
    if (rope["rope_type"] == "dynamic") continue;
    json.erase("max_position_embeddings");
    json["rope_scaling"]["factor"] = 2.0;
    EXPECT_TRUE(ParseHfConfig(json, "c.json").ok());
  }
}

TEST(RopeConfig, HunyuansAlphaStretchesTheBase) {
  const auto parse = [](const Json& rope) {
    Json json = Small();
    json.update({{"model_type", "hunyuan_v1_dense"}, {"num_key_value_heads", 1}, {"head_dim", 8}});
    json.update({{"rope_theta", 100}, {"rope_scaling", rope}, {"max_position_embeddings", 32}});
    return ParseHfConfig(json, "c.json");
  };
  const HfConfig config =
      ValueOrThrow(parse({{"type", "dynamic"}, {"factor", 1.0}, {"alpha", 1000.0}}));
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_NEAR(config.rope.theta, 100 * 1e4, 1e-6);  // 1000^(8 / 6)
  // As it is computed.
  const Json written = ToHfJson(config, DType::kF32);
  EXPECT_EQ(written["rope_theta"], config.rope.theta);
  EXPECT_EQ(written["rope_scaling"], nullptr);
  for (const Json& none : {Json(0), Json(nullptr)}) {
    EXPECT_EQ(
        ValueOrThrow(parse({{"type", "dynamic"}, {"factor", 2.0}, {"alpha", none}})).rope.type,
        RopeType::kDynamic);
  }
  for (const double wrong : {-1.0, 1e-6, 1e300}) {
    EXPECT_THAT(parse({{"type", "dynamic"}, {"factor", 1.0}, {"alpha", wrong}}).status().message(),
                HasSubstr("alpha"));
  }
}

}  // namespace
}  // namespace keel::model
