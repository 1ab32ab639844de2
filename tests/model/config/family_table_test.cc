#include "model/config/family_table.h"

#include <fmt/format.h>
#include <gmock/gmock.h>

#include <cmath>
#include <string>
#include <utility>
#include <vector>

#include "model/config/hf_config.h"
#include "model/config/hf_tensors.h"
#include "tests/model/config/small_config.h"

namespace keel::model {
namespace {

using ::testing::HasSubstr;

// Of Granite 4, whose experts and Mamba are what a file has that does not say otherwise.
Json Dense() { return {{"num_local_experts", 0}, {"layer_types", {"attention"}}}; }

// Of latent attention, with the head_dim that is tried here; and what DeepSeek-V2 has no number
// for.
Json Latent(std::string_view family) {
  Json json = Json::object();
  if (family.starts_with("deepseek") || family == "glm4_moe_lite" || family == "youtu")
    json["qk_rope_head_dim"] = 4;
  if (family == "deepseek_v2") json["num_experts_per_tok"] = 2;
  return json;
}

// Of Ministral 3.
Json Scaled() {
  return {{"rope_type", "default"},
          {"llama_4_scaling_beta", 0.1},
          {"original_max_position_embeddings", 16}};
}

// Of families whose heads are parts of the hidden size, or turn by a quarter, or whose rotation
// must be said.
Json OfItsOwn(std::string_view family) {
  if (family == "cohere2") return {{"head_dim", nullptr}, {"hidden_size", 192}};
  if (family == "gpt_neox") return {{"head_dim", nullptr}, {"hidden_size", 768}};
  if (family == "stablelm") return {{"head_dim", nullptr}, {"hidden_size", 768}};
  if (family == "cohere") return {{"rope_theta", 10000}};
  if (family == "ministral3") return {{"rope_parameters", Scaled()}};
  if (family == "gpt_bigcode") return {{"num_key_value_heads", nullptr}};
  if (family == "gptj") return {{"rotary_dim", 4}};
  if (family == "gpt_neo") {
    return {{"head_dim", nullptr},
            {"num_key_value_heads", nullptr},
            {"attention_types", Json::parse(R"([[["local"], 1]])")}};
  }
  return Json::object();
}

// As transformers has them; a null is a number for each head there, too, where it is allowed.
TEST(FamilyTable, KeyValueHeadsThatAreLeftOutAreTheFamilys) {
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
                                                    {"exaone4", 32},
                                                    {"gemma", 16},
                                                    {"olmoe", 96},
                                                    {"glm", 2},
                                                    {"glm4", 2},
                                                    {"ernie4_5", 2},
                                                    {"ministral", 8},
                                                    {"cwm", 8},
                                                    {"internlm3", 2},
                                                    {"granitemoehybrid", 96},
                                                    {"hunyuan_v1_dense", 96},
                                                    {"glm4_moe", 8},
                                                    {"dots1", 32},
                                                    {"minimax_m2", 8},
                                                    {"deepseek_v2", 96},
                                                    {"deepseek_v3", 96},
                                                    {"glm4_moe_lite", 96},
                                                    {"youtu", 96},
                                                    {"gpt_oss", 8},
                                                    {"qwen3_next", 2},
                                                    {"qwen3_5_text", 4},
                                                    {"qwen3_5_moe_text", 2},
                                                    {"cohere", 96},
                                                    {"cohere2", 96},
                                                    {"starcoder2", 2},
                                                    {"stablelm", 32},
                                                    {"nemotron", 96},
                                                    {"gpt_neox", 96},
                                                    {"ministral3", 8},
                                                    {"jais2", 96},
                                                    {"vaultgemma", 4},
                                                    {"solar_open", 8},
                                                    {"phi", 96}}) {
    Json json = Small();
    json.update({{"model_type", family}, {"num_attention_heads", 96}, {"head_dim", 4}});
    if (family == "mistral") json["sliding_window"] = nullptr;
    if (family == "exaone4") json["sliding_window"] = 8;
    if (family == "cwm" || family == "gpt_oss")
      json["rope_parameters"] = {{"rope_type", "default"}};
    if (family == "granitemoehybrid") json.update(Dense());
    if (family.starts_with("qwen3_next") || family.starts_with("qwen3_5"))
      json.update({{"layer_types", {"full_attention"}}, {"head_dim", 8}});
    if (family == "dots1") json.update(Routed());
    json.update(OfItsOwn(family));
    json.update(Latent(family));
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

// GLM-4.5's files have a layer behind the last, which no part of the model is.
TEST(FamilyTable, LayersThatPredictFurtherTokensMayBeThere) {
  Json json = Small();
  json.update({{"model_type", "glm4_moe"}, {"num_hidden_layers", 3}, {"num_key_value_heads", 2}});
  const ModelTensors tensors = TensorsOf(ValueOrThrow(ParseHfConfig(json, "c")), Head::kVocabulary);
  EXPECT_THAT(tensors.may_add, ::testing::Contains("model.layers.3.*"));
  json["num_nextn_predict_layers"] = 0;
  EXPECT_THAT(TensorsOf(ValueOrThrow(ParseHfConfig(json, "c")), Head::kVocabulary).may_add,
              ::testing::Not(::testing::Contains("model.layers.3.*")));
  const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(ToHfJson(config, DType::kF32, &json)["num_nextn_predict_layers"], 0);
}

TEST(FamilyTable, LatentAttention) {
  Json json = Small();
  json.update({{"model_type", "deepseek_v3"},
               {"num_hidden_layers", 4},
               {"q_lora_rank", nullptr},
               {"kv_lora_rank", 12},
               {"qk_nope_head_dim", 6},
               {"qk_rope_head_dim", 4},
               {"v_head_dim", 14},
               {"rope_theta", 5e4},
               {"rope_scaling",
                {{"type", "yarn"},
                 {"factor", 40},
                 {"mscale", 1.0},
                 {"mscale_all_dim", 1.0},
                 {"original_max_position_embeddings", 16}}}});
  json.erase("head_dim");
  const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(config.latent,
            (LatentSpec{
                .q_rank = 0, .kv_rank = 12, .plain_dims = 6, .turned_dims = 4, .value_dims = 14}));
  EXPECT_EQ(config.head_dim, 14);
  EXPECT_EQ(config.rope_dims(), 4);
  EXPECT_TRUE(config.rope.interleaved);
  EXPECT_EQ(config.rope.attention_factor, 1);
  const double sharpened = 0.1 * std::log(40.0) + 1;
  EXPECT_DOUBLE_EQ(config.Layer(0).score_scale, sharpened * sharpened / std::sqrt(10.0));
  EXPECT_EQ(config.Layer(2).ffn, FfnKind::kDense);
  EXPECT_EQ(config.Layer(3).ffn, FfnKind::kMoe);

  // What an export says is the same, in either spelling.
  for (const bool v5 : {false, true}) {
    Json source = json;
    if (v5) {
      source["rope_parameters"] = json["rope_scaling"];
      source["rope_parameters"]["rope_theta"] = 5e4;
      source.erase("rope_scaling");
      source.erase("rope_theta");
    }
    const Json written = ToHfJson(config, DType::kF32, &source);
    EXPECT_FALSE(written.contains("head_dim"));
    EXPECT_TRUE(written.at("q_lora_rank").is_null());
    const HfConfig again = ValueOrThrow(ParseHfConfig(written, "c"));
    EXPECT_EQ(again.rope, config.rope);
    EXPECT_EQ(again.latent, config.latent);
    EXPECT_EQ(again.Layer(0), config.Layer(0));
    EXPECT_EQ(again.Digest(), config.Digest());
  }

  const auto message = [&](const Json& changes) {
    Json changed = json;
    changed.update(changes);
    const auto found = ParseHfConfig(changed, "c");
    return found.ok() ? std::string() : found.status().message();
  };
  EXPECT_EQ(message({{"head_dim", 4}, {"q_lora_rank", 8}, {"topk_method", "noaux_tc"}}), "");
  EXPECT_THAT(message({{"head_dim", 10}}),
              HasSubstr("head_dim: expected qk_rope_head_dim (4) or no such key, found 10"));
  EXPECT_THAT(message({{"num_key_value_heads", 1}}),
              HasSubstr("num_key_value_heads 1: expected num_attention_heads (2)"));
  EXPECT_THAT(message({{"qk_rope_head_dim", 3}}),
              HasSubstr("qk_rope_head_dim: expected an even number, found 3"));
  EXPECT_THAT(message({{"q_lora_rank", 0}}), HasSubstr("q_lora_rank"));
  EXPECT_THAT(message({{"scoring_func", "softmax"}}),
              HasSubstr("scoring_func: expected \"sigmoid\" or no such key, found \"softmax\""));
  EXPECT_THAT(message({{"moe_layer_freq", 2}}), HasSubstr("moe_layer_freq"));
  EXPECT_THAT(
      message({{"rope_scaling", {{"type", "linear"}, {"factor", 2}, {"mscale_all_dim", 1}}}}),
      HasSubstr("mscale_all_dim is not supported with rope_type linear"));

  const Json v2 = {{"model_type", "deepseek_v2"}, {"num_experts_per_tok", 2}};
  EXPECT_EQ(message(v2), "");
  const auto v2_message = [&](Json changes) {
    changes.update(v2);
    return message(changes);
  };
  EXPECT_THAT(v2_message({{"norm_topk_prob", true}}), HasSubstr("norm_topk_prob: expected false"));
  EXPECT_THAT(v2_message({{"topk_method", "noaux_tc"}}),
              HasSubstr("topk_method: expected greedy or group_limited_greedy"));
  EXPECT_THAT(v2_message({{"topk_method", "group_limited_greedy"}, {"n_group", 4}}),
              HasSubstr("topk_group"));
  EXPECT_THAT(v2_message({{"rope_interleave", false}}), HasSubstr("rope_interleave"));

  // Whose groups nothing goes by.
  EXPECT_EQ(v2_message({{"n_group", 3}, {"topk_group", 2}}), "");
  EXPECT_EQ(
      v2_message({{"topk_method", "group_limited_greedy"}, {"n_group", 64}, {"topk_group", 2}}),
      "");

  Json youtu = json;
  youtu["model_type"] = "youtu";
  youtu.erase("initializer_range");
  const HfConfig drawn = ValueOrThrow(ParseHfConfig(youtu, "c"));
  EXPECT_DOUBLE_EQ(drawn.initializer_range,
                   2 / std::sqrt(5.0 * static_cast<double>(drawn.hidden_size)));
  EXPECT_DOUBLE_EQ(drawn.embedding_range, 2 * drawn.initializer_range);
  youtu["embedding_initializer_range"] = 0.5;
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(youtu, "c")).embedding_range, 0.5);

  const auto lite_message = [&](Json changes) {
    changes["model_type"] = "glm4_moe_lite";
    return message(changes);
  };
  EXPECT_EQ(lite_message({{"first_k_dense_replace", 1}}), "");
  EXPECT_EQ(lite_message({{"first_k_dense_replace", 2},
                          {"mlp_layer_types", {"dense", "dense", "sparse", "sparse"}}}),
            "");
  EXPECT_THAT(lite_message({{"first_k_dense_replace", 2}}),
              HasSubstr("first_k_dense_replace: the dense layers are others"));
  EXPECT_THAT(
      lite_message({{"mlp_layer_types", {"dense", "sparse"}}}),
      HasSubstr("mlp_layer_types: expected dense or sparse for each of num_hidden_layers (4)"));
}

TEST(FamilyTable, LayerTypesMaySayWhatIsComputedAnyhow) {
  for (const char* family : {"llama", "olmo2", "granite", "seed_oss", "arcee", "mistral", "mixtral",
                             "phi3", "qwen3_moe", "gemma", "olmoe", "glm", "glm4", "ernie4_5",
                             "internlm3", "hunyuan_v1_dense", "glm4_moe", "minimax_m2"}) {
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

// Published files of Gemma say gelu and mean its approximation; transformers 4 had a key beside it.
TEST(FamilyTable, GemmasActivationHasTwoNamesAndTwoKeys) {
  const auto parse = [](const Json& keys) {
    Json json = Small();
    json.update({{"model_type", "gemma"}, {"num_key_value_heads", 1}, {"head_dim", 4}});
    json.update(keys);
    return ParseHfConfig(json, "c.json");
  };
  const Json old = {{"hidden_act", "gelu"}, {"hidden_activation", nullptr}};
  const Json both = {{"hidden_act", "gelu"}, {"hidden_activation", "gelu_pytorch_tanh"}};
  for (const Json& keys : {Json::object(), old, both}) {
    const HfConfig config = ValueOrThrow(parse(keys));
    EXPECT_EQ(config.activation, Activation::kGeluTanh) << keys;
    EXPECT_TRUE(config.tie_word_embeddings);
    const Json written = ToHfJson(config, DType::kF32, &keys);
    EXPECT_EQ(written["hidden_act"], "gelu_pytorch_tanh");
    EXPECT_FALSE(written.contains("hidden_activation"));
  }
  EXPECT_EQ(ValueOrThrow(parse({{"hidden_act", "silu"}})).activation, Activation::kSilu);
  for (const Json& keys : {Json{{"hidden_act", "silu"}, {"hidden_activation", "gelu_pytorch_tanh"}},
                           Json{{"hidden_activation", "silu"}}, Json{{"hidden_activation", 3}}}) {
    EXPECT_THAT(parse(keys).status().message(),
                HasSubstr("hidden_activation: expected no such key"));
  }
  // Of no other family: its gelu is the exact one.
  Json llama = Small();
  llama["hidden_act"] = "gelu";
  EXPECT_THAT(ParseHfConfig(llama, "c.json").status().message(),
              HasSubstr("hidden_act: \"gelu\" is not supported"));
}

TEST(FamilyTable, ErnieAndInternLmHaveOneSwitchForAllBiases) {
  const auto parse = [](const char* family, const Json& keys) {
    Json json = Small();
    json.update({{"model_type", family}, {"num_key_value_heads", 1}});
    json.update(keys);
    return ParseHfConfig(json, "c.json");
  };
  const auto all = [](const HfConfig& config) {
    return std::vector<bool>{config.attention_bias, config.output_bias, config.mlp_bias};
  };
  const HfConfig ernie = ValueOrThrow(parse("ernie4_5", {{"use_bias", true}}));
  EXPECT_EQ(all(ernie), std::vector<bool>(3, true));
  EXPECT_TRUE(ernie.rope.interleaved);
  EXPECT_EQ(ToHfJson(ernie, DType::kF32)["use_bias"], true);
  EXPECT_EQ(all(ValueOrThrow(parse("ernie4_5", Json::object()))), std::vector<bool>(3, false));

  for (const Json& keys : {Json{{"qkv_bias", true}, {"bias", true}},
                           Json{{"attention_bias", true}, {"mlp_bias", true}},
                           Json{{"qkv_bias", true}, {"attention_bias", true}, {"bias", true}}}) {
    const HfConfig config = ValueOrThrow(parse("internlm3", keys));
    EXPECT_EQ(all(config), std::vector<bool>(3, true)) << keys;
    const Json written = ToHfJson(config, DType::kF32, &keys);
    EXPECT_EQ(written["qkv_bias"], true);
    EXPECT_EQ(written["bias"], true);
    EXPECT_FALSE(written.contains("attention_bias"));
  }
  EXPECT_THAT(parse("internlm3", {{"qkv_bias", true}}).status().message(),
              HasSubstr("qkv_bias is true and bias false, expected the same"));
  EXPECT_THAT(parse("internlm3", {{"bias", true}, {"mlp_bias", false}}).status().message(),
              HasSubstr("bias is true and mlp_bias false: leave one out"));
}

TEST(FamilyTable, AHeadDimOfNullIsNotThatOfAFileWithoutOne) {
  for (const char* family : {"ernie4_5", "internlm3"}) {
    Json json = Small();
    json.erase("head_dim");
    json.update({{"model_type", family}, {"num_key_value_heads", 1}});
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).head_dim, 128);
    json["head_dim"] = nullptr;
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(json, "c")).head_dim, 4);
  }
}

TEST(FamilyTable, CwmSaysItsRotationAndItsWindows) {
  const auto parse = [](const Json& keys) {
    Json json = Small();
    json.update({{"model_type", "cwm"}, {"num_key_value_heads", 1}, {"num_hidden_layers", 5}});
    json.update(keys);
    return ParseHfConfig(json, "c.json");
  };
  const Json rope = {{"rope_type", "default"}, {"rope_theta", 1e5}};
  const HfConfig config = ValueOrThrow(parse({{"rope_parameters", rope}}));
  EXPECT_EQ(config.windowed, (std::vector<bool>{false, true, true, true, false}));
  EXPECT_EQ(config.sliding_window, 8192);
  // Not as rope_scaling: null, which transformers takes for a stretched rotation.
  const Json written = ToHfJson(config, DType::kF32);
  EXPECT_EQ(written["rope_parameters"], rope);
  EXPECT_FALSE(written.contains("rope_scaling"));
  EXPECT_THAT(parse(Json::object()).status().message(), HasSubstr("rope_parameters"));
  EXPECT_THAT(parse({{"rope_scaling", nullptr}}).status().message(), HasSubstr("rope_parameters"));
  EXPECT_THAT(parse({{"rope_parameters", rope}, {"sliding_window", nullptr}}).status().message(),
              HasSubstr("layer_types"));
}

TEST(FamilyTable, OfGraniteFourTheDenseModelsAreRead) {
  const auto parse = [](const Json& keys) {
    Json json = Small();
    json.update({{"model_type", "granitemoehybrid"}, {"num_key_value_heads", 1}});
    json.update(Dense());
    json.update(keys);
    return ParseHfConfig(json, "c.json");
  };
  const HfConfig config = ValueOrThrow(parse({{"shared_intermediate_size", 24},
                                              {"position_embedding_type", "rope"},
                                              {"mamba_d_conv", 4}}));
  EXPECT_EQ(config.intermediate_size, 24);
  EXPECT_TRUE(config.unturned.empty());
  const Json written = ToHfJson(config, DType::kF32);
  EXPECT_EQ(written["layer_types"], Json::array({"attention"}));
  EXPECT_EQ(written["position_embedding_type"], "rope");
  EXPECT_EQ(written["num_local_experts"], 0);
  for (const Json& none : {Json("nope"), Json(nullptr)}) {
    const HfConfig unturned = ValueOrThrow(parse({{"position_embedding_type", none}}));
    EXPECT_EQ(unturned.unturned, std::vector<bool>{true});
    EXPECT_NE(unturned.Digest(),
              ValueOrThrow(parse({{"position_embedding_type", "rope"}})).Digest());
    EXPECT_EQ(ToHfJson(unturned, DType::kF32)["position_embedding_type"], nullptr);
  }
  const auto problem = [&](const Json& keys) { return parse(keys).status().message(); };
  EXPECT_THAT(problem({{"num_local_experts", 8}}), HasSubstr("num_local_experts: 8, expected 0"));
  EXPECT_THAT(problem({{"layer_types", {"mamba"}}}), HasSubstr("the models without Mamba"));
  EXPECT_THAT(problem({{"layer_types", {"attention", "attention"}}}),
              HasSubstr("num_hidden_layers (1) times"));
  EXPECT_THAT(problem({{"layer_types", nullptr}}), HasSubstr("the models without Mamba"));
  EXPECT_THAT(problem({{"position_embedding_type", "alibi"}}), HasSubstr("expected rope, nope or"));
}

TEST(FamilyTable, BiasesOfTheFeedForwardAreAnotherModel) {
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

// Llama-2-13b was published with 2. It is in how many parts a matrix is multiplied, which is the
// same product.
TEST(FamilyTable, PretrainingTpIsNoOtherModel) {
  for (const char* family : {"llama", "smollm3"}) {
    Json json = Small();
    json["model_type"] = family;
    json["num_key_value_heads"] = 2;
    json["pretraining_tp"] = 2;
    const auto config = ParseHfConfig(json, "c");
    EXPECT_TRUE(config.ok()) << config.status().ToString();
  }
}

TEST(FamilyTable, WhatAFamilyDoesNotHaveIsRefusedByName) {
  const auto message = [](const char* family, const char* key, const Json& value) {
    Json json = Small();
    json["model_type"] = family;
    json["num_key_value_heads"] = 2;
    json["head_dim"] = 4;
    if (std::string_view(family) == "mistral") json["sliding_window"] = nullptr;
    if (std::string_view(family) == "exaone4") json["sliding_window"] = 8;
    if (std::string_view(family) == "cwm" || std::string_view(family) == "gpt_oss")
      json["rope_parameters"] = {{"rope_type", "default"}};
    if (std::string_view(family) == "granitemoehybrid") json.update(Dense());
    if (FindFamily(family) != nullptr && FindFamily(family)->block.gated)
      json.update({{"layer_types", {"full_attention"}}, {"head_dim", 8}});
    if (std::string_view(family) == "dots1") json.update(Routed());
    json.update(OfItsOwn(family));
    json.update(Latent(family));
    if (key[0] != 0) json[key] = value;
    const auto config = ParseHfConfig(json, "c.json");
    return config.ok() ? std::string() : config.status().message();
  };
  for (const FamilyTable& table : Families()) {
    const char* const family = table.model_type.data();  // a literal
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
  for (const char* key : {"attention_dropout", "residual_dropout", "resid_pdrop", "embd_pdrop"})
    EXPECT_EQ(message("llama", key, 0.1), "") << key;
  // As Qwen3-Coder's files have them: they say that there is none.
  EXPECT_EQ(message("qwen3", "qkv_bias", false), "");
  EXPECT_EQ(message("qwen3", "shared_expert_intermediate_size", 0), "");
  EXPECT_THAT(message("qwen3", "qkv_bias", true), HasSubstr("qkv_bias: true is not supported"));
  EXPECT_THAT(message("qwen3", "shared_expert_intermediate_size", 8),
              HasSubstr("shared_expert_intermediate_size: 8 is not supported"));
  EXPECT_THAT(message("llama", "sliding_window", 8), HasSubstr("expected no such key"));
  EXPECT_THAT(FamilyNames(), ::testing::StartsWith("llama, qwen2, qwen3, mistral, smollm3, "));
  EXPECT_THAT(
      message("mamba", "", nullptr),
      HasSubstr(fmt::format("model_type: expected one of {}, found \"mamba\"", FamilyNames())));
  // A model of several parts has its text's keys elsewhere: that they are missing is no news.
  EXPECT_EQ(ParseHfConfig({{"model_type", "gemma3"}, {"text_config", Json::object()}}, "c.json")
                .status()
                .message(),
            fmt::format("c.json: model_type: expected one of {}, found \"gemma3\"", FamilyNames()));
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

TEST(FamilyTable, FactorsAndDropoutsAreReadAndWritten) {
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

// With these each logit would be NaN, or the model another one than to other readers.
// A file without the key has transformers' number, and one with null has no window.
TEST(FamilyTable, AWindowThatIsLeftOutIsTheFamilys) {
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

}  // namespace
}  // namespace keel::model
