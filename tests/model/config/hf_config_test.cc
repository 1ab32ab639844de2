#include "model/config/hf_config.h"

#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "tests/model/config/small_config.h"

namespace keel::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

std::vector<int64_t> EndsOf(const Json& value) {
  Json json = Small();
  json["eos_token_id"] = value;
  const auto config = ValueOrThrow(ParseHfConfig(json, "config.json"));
  EXPECT_EQ(ValueOrThrow(ParseEosTokenIds({{"eos_token_id", value}}, "g")), config.eos_token_ids);
  return config.eos_token_ids;
}

TEST(HfConfig, EndsAreThoseThatAreNamed) {
  EXPECT_THAT(ValueOrThrow(ParseHfConfig(Small(), "c")).eos_token_ids, IsEmpty());
  EXPECT_THAT(EndsOf(nullptr), IsEmpty());
  EXPECT_THAT(EndsOf(7), ElementsAre(7));
  EXPECT_THAT(EndsOf(Json::array({7, 9})), ElementsAre(7, 9));
  EXPECT_THAT(EndsOf(Json::array()), IsEmpty());
  for (const Json& wrong : {Json("x"), Json(1.5), Json::array({1, "x"}), Json::object()}) {
    Json json = Small();
    json["eos_token_id"] = wrong;
    for (const Status& status :
         {ParseHfConfig(json, "c.json").status(), ParseEosTokenIds(json, "c.json").status()}) {
      EXPECT_EQ(status.code(), StatusCode::kInvalidData);
      EXPECT_THAT(status.message(), HasSubstr("c.json: eos_token_id: expected an integer"));
    }
  }
  EXPECT_FALSE(ParseEosTokenIds(Json::array(), "c").ok());
  EXPECT_THAT(ValueOrThrow(ParseEosTokenIds(Json::object(), "c")), IsEmpty());
}

// As Python's json reads them.
TEST(HfConfig, WhatIsNotFiniteIsNoNumber) {
  for (const double value : {NAN, INFINITY}) {
    Json json = Small();
    json["of_no_concern"] = value;
    EXPECT_TRUE(ParseHfConfig(json, "c").ok());
    for (const char* key : {"rms_norm_eps", "rope_theta", "hidden_size", "sliding_window"}) {
      Json wrong = json;
      wrong[key] = value;
      EXPECT_THAT(
          ParseHfConfig(wrong, "c").status().message(),
          AllOf(HasSubstr(std::string(key) + ": "), HasSubstr(std::isnan(value) ? "nan" : "inf")));
    }
  }
}

TEST(HfConfig, AnExportKeepsTheEnds) {
  for (const Json& value : {Json(nullptr), Json(7), Json::array({7, 9})}) {
    Json json = Small();
    json["eos_token_id"] = value;
    const auto config = ValueOrThrow(ParseHfConfig(json, "c"));
    EXPECT_EQ(ToHfJson(config, DType::kF32, &json)["eos_token_id"], value);
  }
}

// Before anything is made of it: a configuration is a few lines that anyone can write.
TEST(HfConfig, SizesThatNoModelHasAreRefused) {
  for (const auto& [key, value] :
       {std::pair("num_hidden_layers", int64_t{1'000'000'000}),
        std::pair("vocab_size", int64_t{100'000'000'000}),
        std::pair("hidden_size", int64_t{1} << 40),
        std::pair("intermediate_size", int64_t{1} << 40),
        std::pair("num_attention_heads", int64_t{1} << 30), std::pair("head_dim", int64_t{1} << 30),
        std::pair("num_hidden_layers", int64_t{0})}) {
    Json json = Small();
    json[key] = value;
    const Status status = ParseHfConfig(json, "c.json").status();
    EXPECT_EQ(status.code(), StatusCode::kInvalidData) << key;
    EXPECT_THAT(status.message(),
                HasSubstr(std::string("c.json: ") + key + ": expected an integer from 1 to "));
    EXPECT_THAT(status.message(), HasSubstr("found " + std::to_string(value)));
  }
  // Each by itself would do.
  Json json = Small();
  json["hidden_size"] = 1 << 20;
  json["intermediate_size"] = 1 << 23;
  json["num_hidden_layers"] = 10'000;
  EXPECT_THAT(ParseHfConfig(json, "c.json").status().message(),
              HasSubstr("one of its sizes is wrong"));
}

TEST(HfConfig, NumbersThatMakeNoModelAreRefused) {
  for (const auto& [key, value] :
       {std::pair("rope_theta", 0.0), std::pair("rope_theta", -1.0),
        std::pair("rms_norm_eps", -1e-5), std::pair("initializer_range", -0.02),
        std::pair("initializer_range", 1e300)}) {
    Json json = Small();
    json[key] = value;
    EXPECT_THAT(ParseHfConfig(json, "c.json").status().message(),
                HasSubstr(std::string("c.json: ") + key + ": expected a number from "));
  }
  Json json = Small();
  json["rope_parameters"] = {{"rope_type", "default"}, {"rope_theta", -1e4}};
  EXPECT_THAT(ParseHfConfig(json, "c.json").status().message(),
              HasSubstr("rope_theta: expected a number from 1 to "));
}

TEST(HfConfig, WhatItSaysIsShownPrintable) {
  Json json = Small();
  json["model_type"] = "\x1b[31mllama\n2026";
  json["hidden_size"] = "\x7f\u009b";
  const std::string message = ParseHfConfig(json, "c.json").status().message();
  EXPECT_THAT(message, HasSubstr("found \"\\x1b[31mllama\\x0a2026\""));
  EXPECT_EQ(message.find_first_of("\x1b\n\x7f"), std::string::npos) << message;
}

// transformers 4 passes over a map that it does not know, and turns by the plain angles.
TEST(HfConfig, AnExportSpellsRotationsAsItsSource) {
  const Json yarn = {
      {"rope_type", "yarn"}, {"factor", 8.0}, {"original_max_position_embeddings", 64}};
  Json olmo = Small();
  olmo.update({{"model_type", "olmo3"},
               {"rope_theta", 500'000},
               {"rope_scaling", yarn},
               {"auto_map", {{"AutoConfig", "configuration_olmo.C"}}}});
  Json gemma = Small();
  gemma.update({{"model_type", "gemma3_text"},
                {"hidden_act", "gelu_pytorch_tanh"},
                {"num_key_value_heads", 2},
                {"rope_theta", 1e6},
                {"rope_local_base_freq", 1e4},
                {"max_position_embeddings", 1024},
                {"rope_scaling", {{"rope_type", "linear"}, {"factor", 8.0}}}});
  Json phi = Small();
  phi.update({{"model_type", "phi3"},
              {"rope_theta", 1e4},
              {"max_position_embeddings", 128},
              {"original_max_position_embeddings", 64}});
  const HfConfig plain = ValueOrThrow(ParseHfConfig(phi, "c"));
  const std::vector<double> factors(static_cast<size_t>(plain.head_dim / 2), 1.5);
  phi["rope_scaling"] = {{"type", "longrope"}, {"short_factor", factors}, {"long_factor", factors}};
  for (const Json& source : {olmo, gemma, phi}) {
    const HfConfig config = ValueOrThrow(ParseHfConfig(source, "c"));
    const Json written = ToHfJson(config, DType::kF32, &source);
    for (const char* key : {"rope_theta", "rope_scaling", "rope_local_base_freq"})
      EXPECT_EQ(written.value(key, Json()), source.value(key, Json())) << key;
    EXPECT_FALSE(written.contains("rope_parameters"));
    EXPECT_FALSE(written.contains("auto_map"));
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest());
    // Another rotation than the source's is not lost to its spelling.
    HfConfig other = config;
    other.rope.theta = 77'000;
    if (other.family == Family::kOlmo3) continue;  // has one theta
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(ToHfJson(other, DType::kF32, &source), "c")).rope.theta,
              77'000);
  }
  // What transformers 5 saved: with the three keys that 4 asks for.
  Json five = phi;
  five.erase("rope_scaling");
  five.erase("rope_theta");
  five["rope_parameters"] = {
      {"rope_type", "longrope"},      {"rope_theta", 1e4},
      {"short_factor", factors},      {"long_factor", factors},
      {"partial_rotary_factor", 1.0}, {"original_max_position_embeddings", 64}};
  const HfConfig config = ValueOrThrow(ParseHfConfig(five, "c"));
  const Json written = ToHfJson(config, DType::kF32, &five);
  EXPECT_EQ(written["rope_scaling"], phi["rope_scaling"]);
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest());
}

TEST(HfConfig, ALengthThatIsLeftOutIsTheFamilys) {
  for (const auto& [type, positions] : {std::pair("llama", 2048),
                                        {"mistral", 131'072},
                                        {"qwen2", 32'768},
                                        {"qwen3", 32'768},
                                        {"gemma3_text", 131'072},
                                        {"seed_oss", 524'288}}) {
    Json json = Small();
    json.update({{"model_type", type}, {"num_key_value_heads", 2}, {"head_dim", 4}});
    if (type == std::string("gemma3_text")) json["hidden_act"] = "gelu_pytorch_tanh";
    json["sliding_window"] = nullptr;
    json.erase("max_position_embeddings");
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).max_position_embeddings, positions) << type;
  }
}

}  // namespace
}  // namespace keel::model
