#include "model/config/hf_config.h"

#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

namespace keel::model {
namespace {

using ::testing::AllOf;
using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

Json Small() {
  return {{"model_type", "llama"},  {"hidden_size", 8},         {"intermediate_size", 16},
          {"num_hidden_layers", 1}, {"num_attention_heads", 2}, {"vocab_size", 259}};
}

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

// As transformers has them; a null is a number for each head there, too, where it is allowed.
TEST(HfConfig, KeyValueHeadsThatAreLeftOutAreTheFamilys) {
  for (const auto& [family, heads] :
       std::vector<std::pair<std::string, int64_t>>{{"llama", 96},
                                                    {"qwen2", 32},
                                                    {"qwen3", 32},
                                                    {"mistral", 8},
                                                    {"smollm3", 4},
                                                    {"gemma2", 4},
                                                    {"gemma3_text", 4},
                                                    {"olmo2", 96},
                                                    {"olmo3", 96},
                                                    {"qwen3_moe", 4},
                                                    {"mixtral", 8},
                                                    {"phi3", 96},
                                                    {"granite", 96},
                                                    {"seed_oss", 8},
                                                    {"arcee", 96},
                                                    {"qwen2_moe", 16},
                                                    {"exaone4", 32}}) {
    Json json = Small();
    json.update({{"model_type", family}, {"num_attention_heads", 96}, {"head_dim", 4}});
    if (family == "mistral") json["sliding_window"] = nullptr;
    if (family == "exaone4") json["sliding_window"] = 8;
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).num_key_value_heads, heads) << family;
    json["num_key_value_heads"] = nullptr;
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).num_key_value_heads, 96) << family;
  }
  Json json = Small();
  json["model_type"] = "gemma2";
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(),
              HasSubstr("num_attention_heads 2 is not a multiple of num_key_value_heads 4, which "
                        "gemma2 has where the key is left out"));
}

TEST(HfConfig, LayerTypesMaySayWhatIsComputedAnyhow) {
  for (const char* family : {"llama", "olmo2", "granite", "seed_oss", "arcee", "mistral", "mixtral",
                             "phi3", "qwen3_moe"}) {
    Json json = Small();
    json.update({{"model_type", family}, {"num_hidden_layers", 2}, {"num_key_value_heads", 2}});
    const bool may_have_window = json["model_type"] == "mistral" || json["model_type"] == "phi3";
    for (const bool window : {false, true}) {
      if (window && !may_have_window) continue;
      if (may_have_window) json["sliding_window"] = window ? Json(8) : Json(nullptr);
      const char* const computed = window ? "sliding_attention" : "full_attention";
      const char* const other = window ? "full_attention" : "sliding_attention";
      json["layer_types"] = {computed, computed};
      EXPECT_TRUE(ParseHfConfig(json, "c").ok()) << family;
      for (const Json& types : {Json{computed}, Json{computed, other}, Json("full_attention")}) {
        json["layer_types"] = types;
        EXPECT_THAT(ParseHfConfig(json, "c").status().message(),
                    HasSubstr(std::string("layer_types: expected no such key, or \"") + computed))
            << family;
      }
    }
  }
}

TEST(HfConfig, BiasesOfTheFeedForwardAreAnotherModel) {
  for (const char* family : {"llama", "smollm3", "granite", "seed_oss", "arcee"}) {
    Json json = Small();
    json.update({{"model_type", family}, {"num_key_value_heads", 2}, {"mlp_bias", true}});
    const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
    EXPECT_TRUE(config.mlp_bias);
    const Json written = ToHfJson(config, DType::kF32);
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest());
    json["mlp_bias"] = false;
    EXPECT_NE(ValueOrThrow(ParseHfConfig(json, "c")).Digest(), config.Digest());
  }
  Json json = Small();
  json.update({{"model_type", "olmo2"}, {"mlp_bias", true}});
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(), HasSubstr("mlp_bias: true is not"));
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

// Llama-2-13b was published with 2. It is in how many parts a matrix is multiplied, which is the
// same product.
TEST(HfConfig, PretrainingTpIsNoOtherModel) {
  for (const char* family : {"llama", "smollm3"}) {
    Json json = Small();
    json["model_type"] = family;
    json["num_key_value_heads"] = 2;
    json["pretraining_tp"] = 2;
    const auto config = ParseHfConfig(json, "c");
    EXPECT_TRUE(config.ok()) << config.status().ToString();
  }
}

// To transformers a null is no, and a key that is left out yes.
TEST(HfConfig, TruncateOfYarnMayBeNull) {
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

// As Phi-4-mini-instruct has it.
TEST(HfConfig, TheContextBeforeTheStretchStandsOutsideTheMap) {
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

// What is left out would be guessed, and what is not looked at would be another model's.
TEST(HfConfig, EveryWayToSayHowPositionsTurnIsReadOrRefused) {
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
  for (const char* key :
       {"factor", "low_freq_factor", "high_freq_factor", "original_max_position_embeddings"}) {
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

TEST(HfConfig, ExpertsAreReadAndWrongOnesRefused) {
  const auto parse = [](const char* family, const Json& more) {
    Json json = Small();
    json["model_type"] = family;
    json["num_hidden_layers"] = 4;
    json["num_key_value_heads"] = 2;
    json.update(more);
    return ParseHfConfig(json, "c.json");
  };
  const Json qwen = {{"num_experts", 6}, {"num_experts_per_tok", 2}, {"moe_intermediate_size", 5}};
  const auto changed = [&](const Json& more) {
    Json json = qwen;
    json.update(more);
    return parse("qwen3_moe", json).status().message();
  };
  const auto config = ValueOrThrow(parse("qwen3_moe", {{"num_local_experts", 6},
                                                       {"num_experts_per_tok", 2},
                                                       {"moe_intermediate_size", 5},
                                                       {"norm_topk_prob", true},
                                                       {"decoder_sparse_step", 2},
                                                       {"mlp_only_layers", {3, 9}}}));
  EXPECT_EQ(config.moe, (MoeSpec{.experts = 6, .top_k = 2, .width = 5, .renormalize = true}));
  EXPECT_EQ(config.Layer(0).ffn, FfnKind::kDense);
  EXPECT_EQ(config.Layer(1).ffn, FfnKind::kMoe);
  EXPECT_EQ(config.Layer(3).ffn, FfnKind::kDense);
  EXPECT_EQ(config.balance_coefficient(), 0);
  EXPECT_EQ(ValueOrThrow(parse("qwen3_moe", qwen)).dense_ffn, std::vector<bool>{});
  // Under either name, and written back under the one that all versions of transformers read.
  const Json written = ToHfJson(config, DType::kF32, nullptr);
  EXPECT_EQ(written["num_experts"], 6);
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest());

  const auto mixtral = ValueOrThrow(parse("mixtral", {{"output_router_logits", true}}));
  EXPECT_EQ(mixtral.moe, (MoeSpec{.experts = 8, .top_k = 2, .width = 16, .renormalize = true}));
  EXPECT_EQ(mixtral.balance_coefficient(), 0.001);

  EXPECT_EQ(changed(Json::object()), "");
  EXPECT_THAT(changed({{"num_experts_per_tok", 7}}),
              HasSubstr("num_experts_per_tok 7 is more than num_experts 6"));
  EXPECT_THAT(changed({{"num_experts", 0}}), HasSubstr("num_experts: expected an integer from 1"));
  EXPECT_THAT(changed({{"num_experts", 1 << 20}}), HasSubstr("num_experts: expected"));
  EXPECT_THAT(changed({{"num_local_experts", 4}}), HasSubstr("num_local_experts 4: leave one out"));
  EXPECT_THAT(changed({{"mlp_only_layers", {-1}}}), HasSubstr("mlp_only_layers: expected numbers"));
  EXPECT_THAT(changed({{"mlp_only_layers", 1}}), HasSubstr("mlp_only_layers: expected a list"));
  EXPECT_THAT(changed({{"decoder_sparse_step", 0}}), HasSubstr("decoder_sparse_step: expected"));
  EXPECT_THAT(changed({{"router_aux_loss_coef", -1}}), HasSubstr("router_aux_loss_coef: expected"));
  EXPECT_THAT(changed({{"layer_types", Json::array()}}), HasSubstr("layer_types"));
  EXPECT_THAT(changed({{"num_hidden_layers", 10'000}, {"num_experts", 1'000}}),
              HasSubstr("1000 experts in each of 10000 layers"));
  EXPECT_THAT(parse("mixtral", {{"router_jitter_noise", 0.1}}).status().message(),
              HasSubstr("router_jitter_noise: 0.1 is not supported"));
  // A dense family does not have them.
  EXPECT_THAT(parse("qwen3", {{"num_experts", 4}}).status().message(), HasSubstr("num_experts"));
}

TEST(HfConfig, WhatAFamilyDoesNotHaveIsRefusedByName) {
  const auto message = [](const char* family, const char* key, const Json& value) {
    Json json = Small();
    json["model_type"] = family;
    json["num_key_value_heads"] = 2;
    json["head_dim"] = 4;
    if (std::string_view(family) == "mistral") json["sliding_window"] = nullptr;
    if (std::string_view(family) == "exaone4") json["sliding_window"] = 8;
    if (key[0] != 0) json[key] = value;
    const auto config = ParseHfConfig(json, "c.json");
    return config.ok() ? std::string() : config.status().message();
  };
  for (const char* family :
       {"llama", "qwen2", "qwen3", "mistral", "smollm3", "gemma2", "gemma3_text", "olmo2", "olmo3",
        "qwen3_moe", "mixtral", "phi3", "granite", "seed_oss", "arcee", "qwen2_moe", "exaone4"}) {
    EXPECT_EQ(message(family, "", nullptr), "") << family;
    EXPECT_THAT(message(family, "attention_dropout", 1.1), HasSubstr("c.json: attention_dropout"));
    EXPECT_THAT(message(family, "per_layer_config", {{"0", {{"rms_norm_eps", 0.5}}}}),
                HasSubstr("per_layer_config: "));
    EXPECT_THAT(message(family, "quantization_config", {{"quant_method", "gptq"}}),
                HasSubstr("the weights are quantized (\"gptq\")"));
    EXPECT_THAT(message(family, "is_causal", false),
                HasSubstr("is_causal: false is not supported for model_type"));
    EXPECT_EQ(message(family, "is_causal", true), "") << family;
  }
  EXPECT_THAT(message("llama", "attention_dropout", 0.1),
              HasSubstr("c.json: attention_dropout: 0.1 is not supported for model_type"));
  EXPECT_THAT(message("llama", "sliding_window", 8), HasSubstr("expected no such key"));
  EXPECT_THAT(
      message("gpt2", "", nullptr),
      HasSubstr("model_type: expected one of llama, qwen2, qwen3, mistral, smollm3, gemma2, "
                "gemma3_text, olmo2, olmo3, qwen3_moe, mixtral, phi3, granite, seed_oss, arcee, "
                "qwen2_moe, exaone4, found "
                "\"gpt2\""));
  // A model of several parts has its text's keys elsewhere: that they are missing is no news.
  EXPECT_EQ(ParseHfConfig({{"model_type", "gemma3"}, {"text_config", Json::object()}}, "c.json")
                .status()
                .message(),
            "c.json: model_type: expected one of llama, qwen2, qwen3, mistral, smollm3, gemma2, "
            "gemma3_text, olmo2, olmo3, qwen3_moe, mixtral, phi3, granite, seed_oss, arcee, "
            "qwen2_moe, exaone4, found \"gemma3\"");
  EXPECT_THAT(ParseHfConfig({{"model_type", "gemma3"},
                             {"text_config", {{"model_type", "gemma3_text"}}},
                             {"vision_config", Json::object()}},
                            "c.json")
                  .status()
                  .message(),
              HasSubstr("found \"gemma3\", whose text_config is of model_type gemma3_text: save "
                        "that part, with the tensors under language_model, as a model of its own"));
  EXPECT_THAT(message("phi3", "rope_scaling", {{"type", "linear"}, {"factor", 2}}),
              HasSubstr("rope_type: expected default or longrope for model_type phi3"));
  EXPECT_THAT(message("phi3", "resid_pdrop", 0.1), HasSubstr("resid_pdrop: 0.1 is not supported"));
  EXPECT_THAT(message("phi3", "partial_rotary_factor", 0.3), HasSubstr("turns 1 dims"));
  EXPECT_THAT(message("phi3", "rope_scaling",
                      {{"type", "longrope"}, {"short_factor", {1}}, {"long_factor", {1, 1}}}),
              HasSubstr("short_factor is for 2 dims, and 4 turn of head_dim 4"));
  EXPECT_THAT(message("olmo3", "layer_types", {"linear_attention"}),
              HasSubstr("layer_types: expected full_attention or sliding_attention"));
  EXPECT_THAT(message("smollm3", "no_rope_layers", {2}), HasSubstr("no_rope_layers: expected 0"));
  EXPECT_THAT(message("gemma2", "final_logit_softcapping", -1), HasSubstr("from 0.001"));
  EXPECT_THAT(message("llama", "rope_scaling", {{"type", "spiral"}}),
              HasSubstr("rope_type: \"spiral\" is not supported, expected one of default, linear"));
  EXPECT_THAT(message("llama", "rope_scaling",
                      {{"rope_type", "longrope"},
                       {"original_max_position_embeddings", 8},
                       {"short_factor", {1, 1, 1}},
                       {"long_factor", {1, 1}}}),
              HasSubstr("short_factor: expected a list of 2 numbers"));
}

TEST(HfConfig, FactorsAndDropoutsAreReadAndWritten) {
  Json json = Small();
  json["model_type"] = "granite";
  const HfConfig plain = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(plain.Layer(0).score_scale, 1);  // as transformers, and not by a head's size
  json.update({{"embedding_multiplier", 12},
               {"attention_multiplier", 0.0078125},
               {"residual_multiplier", 0.22},
               {"logits_scaling", 16},
               {"attention_dropout", 0.1}});
  const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(config.Layer(0).score_scale, 0.0078125);
  EXPECT_EQ(config.Layer(0).residual_scale, 0.22);
  EXPECT_NE(config.Digest(), plain.Digest());
  const Json written = ToHfJson(config, DType::kBF16);
  EXPECT_EQ(written["attention_dropout"], 0.1);
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest());
  for (const char* key :
       {"embedding_multiplier", "attention_multiplier", "residual_multiplier", "logits_scaling"}) {
    Json wrong = json;
    wrong[key] = 0;
    EXPECT_THAT(ParseHfConfig(wrong, "c").status().message(),
                HasSubstr(std::string("c: ") + key + ": expected a number from "));
  }
  // Where Seed-OSS leaves them out they are not 0.
  Json seed = Small();
  seed.update({{"model_type", "seed_oss"}, {"num_key_value_heads", 2}, {"head_dim", 4}});
  const HfConfig other = ValueOrThrow(ParseHfConfig(seed, "c"));
  EXPECT_TRUE(other.attention_bias);
  EXPECT_FALSE(other.output_bias);
  EXPECT_EQ(ToHfJson(other, DType::kF32)["residual_dropout"], 0.1);
}

TEST(HfConfig, LayersOfExaoneThatLackTheWindowAreNotTurned) {
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

TEST(HfConfig, TheSharedExpertIsReadAndWritten) {
  Json json = Small();
  json.update({{"model_type", "qwen2_moe"},
               {"num_key_value_heads", 2},
               {"num_experts", 3},
               {"num_experts_per_tok", 1},
               {"moe_intermediate_size", 4},
               {"shared_expert_intermediate_size", 6},
               {"hidden_act", "silu"}});
  const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(
      config.Layer(0).moe,
      (MoeSpec{.experts = 3, .top_k = 1, .width = 4, .renormalize = false, .shared_width = 6}));
  EXPECT_TRUE(config.attention_bias);
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(ToHfJson(config, DType::kF32), "c")).Digest(),
            config.Digest());
  json["use_sliding_window"] = true;
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(),
              HasSubstr("use_sliding_window: true, but sliding_window gives no window"));
  json = Small();
  json["model_type"] = "arcee";
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).activation, Activation::kRelu2);
  json["hidden_act"] = "silu";
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(),
              HasSubstr("hidden_act: \"silu\" is not supported, expected relu2"));
  json.update({{"model_type", "llama"}, {"hidden_act", "relu2"}});
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(), HasSubstr("expected silu or gelu"));
}

// With these each logit would be NaN, or the model another one than to other readers.
// A file without the key has transformers' number, and one with null has no window.
TEST(HfConfig, AWindowThatIsLeftOutIsTheFamilys) {
  for (const char* family : {"gemma2", "gemma3_text", "olmo3", "qwen2", "qwen3"}) {
    Json json = Small();
    json["model_type"] = family;
    json["num_key_value_heads"] = 1;
    json["num_hidden_layers"] = 2;
    if (std::string(family).starts_with("qwen")) {
      json["max_window_layers"] = 0;
      json["use_sliding_window"] = true;
    }
    const auto config = ValueOrThrow(ParseHfConfig(json, "c"));
    EXPECT_EQ(config.Layer(0).window, 4096) << family;
    json["sliding_window"] = 7;
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).Layer(0).window, 7) << family;
    json["sliding_window"] = nullptr;
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).Layer(0).window, 0) << family;
    json["layer_types"] = {"sliding_attention", "full_attention"};
    EXPECT_THAT(ParseHfConfig(json, "c").status().message(), HasSubstr("sliding_window: missing"));
  }
}

// Its layers with a window turn by their own map whether or not the file says how long that is.
TEST(HfConfig, OfTwoRotationsEachHasItsLayersAndItsTheta) {
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
TEST(HfConfig, WhatIsPassedOverOfTwoRotationsIsRefused) {
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
TEST(HfConfig, AContextByWhichPositionsTurnMustBeThere) {
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

}  // namespace
}  // namespace keel::model
