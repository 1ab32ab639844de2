#include "model/config/text_part.h"

#include <gmock/gmock.h>

#include "model/config/config_reader.h"
#include "model/config/family_table.h"
#include "model/config/hf_config.h"

namespace keel::model {
namespace {

using ::testing::HasSubstr;

TextPart PartOf(const Json& json) {
  auto part = ValueOrThrow(TextPartOf(json, "m/config.json"));
  EXPECT_TRUE(part.has_value());
  return part.value_or(TextPart());
}

std::string MessageOf(const Json& json) {
  return TextPartOf(json, "m/config.json").status().message();
}

// As google/gemma-3-4b-it has it: what is transformers' default is not there.
Json PublishedGemma3() {
  return Json::parse(R"({
    "architectures": ["Gemma3ForConditionalGeneration"], "boi_token_index": 255999,
    "eoi_token_index": 256000, "eos_token_id": [1, 106], "image_token_index": 262144,
    "initializer_range": 0.02, "mm_tokens_per_image": 256, "model_type": "gemma3",
    "text_config": {"hidden_size": 2560, "intermediate_size": 10240, "model_type": "gemma3_text",
                    "num_hidden_layers": 34, "rope_scaling": {"factor": 8.0, "rope_type": "linear"},
                    "sliding_window": 1024},
    "torch_dtype": "bfloat16", "transformers_version": "4.50.0.dev0",
    "vision_config": {"hidden_size": 1152, "image_size": 896, "intermediate_size": 4304,
                      "model_type": "siglip_vision_model", "num_attention_heads": 16,
                      "num_hidden_layers": 27, "patch_size": 14, "vision_use_head": false}})");
}

TEST(TextPart, APublishedGemma3IsItsTextModel) {
  const TextPart part = PartOf(PublishedGemma3());
  EXPECT_EQ(part.whole, "gemma3");
  EXPECT_TRUE(part.tie_unsaid);
  const HfConfig config = ValueOrThrow(ParseHfConfig(part.json, "c"));
  EXPECT_EQ(config.family, Family::kGemma3);
  EXPECT_EQ(config.vocab_size, 262208);
  EXPECT_EQ(config.hidden_size, 2560);
  EXPECT_EQ(config.num_attention_heads, 8);
  EXPECT_EQ(config.num_key_value_heads, 4);
  EXPECT_EQ(config.head_dim, 256);
  EXPECT_EQ(config.max_position_embeddings, 131072);
  EXPECT_EQ(config.query_pre_attn_scalar, 256);
  EXPECT_TRUE(config.tie_word_embeddings);
  EXPECT_EQ(config.rope.type, RopeType::kLinear);
  EXPECT_EQ(config.rope.factor, 8);
  EXPECT_EQ(config.rope.theta, 1e6);
  ASSERT_TRUE(config.local_rope.has_value());
  EXPECT_EQ(config.local_rope->theta, 1e4);
  EXPECT_EQ(config.Layer(4).window, 1024);
  EXPECT_EQ(config.Layer(5).window, 0);
  EXPECT_EQ(config.eos_token_ids, (std::vector<int64_t>{1, 106}));
  EXPECT_EQ(config.bos_token_id, 2);
  EXPECT_EQ(config.dtype, DType::kBF16);
  // Those of the vision part are not among them.
  EXPECT_EQ(config.NumParameters(), 3880263168);
  // What an export says of it is of the text model alone.
  const Json written = ToHfJson(config, DType::kBF16, &part.json);
  EXPECT_EQ(written["model_type"], "gemma3_text");
  EXPECT_EQ(written["architectures"], Json::array({"Gemma3ForCausalLM"}));
  for (const char* key : {"text_config", "vision_config", "image_token_index"})
    EXPECT_FALSE(written.contains(key)) << key;
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest());
}

// As mistralai/Mistral-Small-3.1-24B-Instruct-2503.
TEST(TextPart, APublishedMistral3IsItsTextModel) {
  const Json json = Json::parse(R"({
    "architectures": ["Mistral3ForConditionalGeneration"], "image_token_index": 10,
    "model_type": "mistral3", "multimodal_projector_bias": false, "projector_hidden_act": "gelu",
    "spatial_merge_size": 2, "torch_dtype": "bfloat16", "vision_feature_layer": -1,
    "text_config": {"attention_dropout": 0.0, "head_dim": 128, "hidden_act": "silu",
      "hidden_size": 5120, "initializer_range": 0.02, "intermediate_size": 32768,
      "max_position_embeddings": 131072, "model_type": "mistral", "num_attention_heads": 32,
      "num_hidden_layers": 40, "num_key_value_heads": 8, "rms_norm_eps": 1e-05,
      "rope_theta": 1000000000.0, "sliding_window": null, "use_cache": true, "vocab_size": 131072},
    "vision_config": {"model_type": "pixtral"}})");
  const TextPart part = PartOf(json);
  EXPECT_TRUE(part.tie_unsaid);
  const HfConfig config = ValueOrThrow(ParseHfConfig(part.json, "c"));
  EXPECT_EQ(config.family, Family::kMistral);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.rope.theta, 1e9);
  EXPECT_EQ(config.eos_token_ids, std::vector<int64_t>{2});
  EXPECT_EQ(config.num_key_value_heads, 8);
}

// As llava-hf/llava-1.5-7b-hf, whose text_config has next to nothing.
TEST(TextPart, APublishedLlavaIsItsTextModel) {
  const Json json = Json::parse(R"({
    "architectures": ["LlavaForConditionalGeneration"], "model_type": "llava",
    "image_token_index": 32000, "pad_token_id": 32001, "tie_word_embeddings": false,
    "text_config": {"_name_or_path": "lmsys/vicuna-7b-v1.5", "architectures": ["LlamaForCausalLM"],
      "max_position_embeddings": 4096, "model_type": "llama", "rms_norm_eps": 1e-05,
      "torch_dtype": "float16", "vocab_size": 32064},
    "torch_dtype": "float16", "vision_config": {"model_type": "clip_vision_model"}})");
  const TextPart part = PartOf(json);
  EXPECT_FALSE(part.tie_unsaid);
  const HfConfig config = ValueOrThrow(ParseHfConfig(part.json, "c"));
  EXPECT_EQ(config.NumParameters(), 6738939904);  // of a Llama of 7B with 64 rows more
  EXPECT_FALSE(config.tie_word_embeddings);
  EXPECT_EQ(config.max_position_embeddings, 4096);
}

// As Qwen/Qwen2.5-VL-7B-Instruct, whose text has no map of its own.
TEST(TextPart, APublishedQwen25VlIsItsTextModel) {
  Json json = Json::parse(R"({
    "architectures": ["Qwen2_5_VLForConditionalGeneration"], "attention_dropout": 0.0,
    "bos_token_id": 151643, "eos_token_id": 151645, "vision_start_token_id": 151652,
    "vision_end_token_id": 151653, "vision_token_id": 151654, "image_token_id": 151655,
    "video_token_id": 151656, "hidden_act": "silu", "hidden_size": 3584,
    "initializer_range": 0.02, "intermediate_size": 18944, "max_position_embeddings": 128000,
    "max_window_layers": 28, "model_type": "qwen2_5_vl", "num_attention_heads": 28,
    "num_hidden_layers": 28, "num_key_value_heads": 4, "rms_norm_eps": 1e-06,
    "rope_theta": 1000000.0, "sliding_window": 32768, "tie_word_embeddings": false,
    "torch_dtype": "bfloat16", "use_cache": true, "use_sliding_window": false,
    "vision_config": {"depth": 32, "hidden_size": 1280, "model_type": "qwen2_5_vl"},
    "rope_scaling": {"type": "mrope", "mrope_section": [16, 24, 24]}, "vocab_size": 152064})");
  const TextPart part = PartOf(json);
  const HfConfig config = ValueOrThrow(ParseHfConfig(part.json, "c"));
  EXPECT_EQ(config.family, Family::kQwen2);
  EXPECT_EQ(config.NumParameters(), 7615616512);  // of Qwen2.5 7B
  EXPECT_EQ(config.rope.type, RopeType::kDefault);
  EXPECT_EQ(config.rope.theta, 1e6);
  EXPECT_EQ(config.sliding_window, 0);
  EXPECT_EQ(config.dtype, DType::kBF16);
  const Json written = ToHfJson(config, DType::kBF16, &part.json);
  for (const char* key : {"vision_config", "image_token_id", "video_token_id", "vision_token_id",
                          "vision_start_token_id", "mrope_section"})
    EXPECT_FALSE(written.contains(key)) << key;
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest());
  // Its positions may be stretched.
  json["rope_scaling"] = {{"type", "yarn"},
                          {"mrope_section", {16, 24, 24}},
                          {"factor", 4},
                          {"original_max_position_embeddings", 32768}};
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(PartOf(json).json, "c")).rope.type, RopeType::kYarn);
  // Its class's own defaults are not Qwen2's.
  for (const char* key : {"rope_theta", "rms_norm_eps", "num_key_value_heads", "rope_scaling"})
    json.erase(key);
  json["num_attention_heads"] = 32;
  const HfConfig unsaid = ValueOrThrow(ParseHfConfig(PartOf(json).json, "c"));
  EXPECT_EQ(unsaid.rope.theta, 1e6);
  EXPECT_EQ(unsaid.rms_norm_eps, 1e-5);
  EXPECT_EQ(unsaid.num_key_value_heads, 8);
}

// As Qwen/Qwen3-VL-4B-Instruct.
TEST(TextPart, APublishedQwen3VlIsItsTextModel) {
  Json json = Json::parse(R"({
    "architectures": ["Qwen3VLForConditionalGeneration"], "image_token_id": 151655,
    "model_type": "qwen3_vl", "text_config": {"attention_bias": false, "attention_dropout": 0.0,
      "bos_token_id": 151643, "dtype": "bfloat16", "eos_token_id": 151645, "head_dim": 128,
      "hidden_act": "silu", "hidden_size": 2560, "initializer_range": 0.02,
      "intermediate_size": 9728, "max_position_embeddings": 262144, "model_type": "qwen3_vl_text",
      "num_attention_heads": 32, "num_hidden_layers": 36, "num_key_value_heads": 8,
      "rms_norm_eps": 1e-06, "rope_scaling": {"mrope_interleaved": true,
      "mrope_section": [24, 20, 20], "rope_type": "default"}, "rope_theta": 5000000,
      "tie_word_embeddings": true, "use_cache": true, "vocab_size": 151936},
    "tie_word_embeddings": true, "video_token_id": 151656, "vision_config": {"depth": 24},
    "vision_end_token_id": 151653, "vision_start_token_id": 151652})");
  const TextPart part = PartOf(json);
  const HfConfig config = ValueOrThrow(ParseHfConfig(part.json, "c"));
  EXPECT_EQ(config.family, Family::kQwen3);
  EXPECT_EQ(config.NumParameters(), 4022468096);  // of Qwen3 4B
  EXPECT_EQ(config.rope.theta, 5e6);
  EXPECT_TRUE(config.tie_word_embeddings);
  json["text_config"].erase("rope_theta");
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(PartOf(json).json, "c")).rope.theta, 5e5);
  json["text_config"]["rope_parameters"] = {{"rope_theta", 77}, {"mrope_section", {24, 20, 20}}};
  json["text_config"].erase("rope_scaling");
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(PartOf(json).json, "c")).rope.theta, 77);
}

// Who says whether the head is the embeddings' matrix, in transformers' classes.
TEST(TextPart, TheWholeSaysWhetherItsHeadIsTied) {
  struct Tie {
    const char* whole;
    Json outer;  // null: the key is not there
    Json text;
    bool tied;
    bool unsaid;
  };
  const Tie cases[] = {
      {"gemma3", nullptr, nullptr, true, true},       {"gemma3", false, nullptr, false, false},
      {"gemma3", true, false, true, false},           {"mistral3", nullptr, false, true, true},
      {"mistral3", false, true, false, false},        {"llava", nullptr, nullptr, false, false},
      {"llava", nullptr, true, true, false},          {"llava", false, true, true, false},
      {"llava_next", nullptr, true, false, false},    {"llava_next", true, nullptr, true, false},
      {"llava_onevision", false, true, true, false},  {"internvl", nullptr, nullptr, true, true},
      {"internvl", false, true, false, false},        {"qwen2_vl", nullptr, true, true, false},
      {"qwen2_5_vl", nullptr, nullptr, false, false}, {"qwen3_vl", nullptr, true, false, false},
  };
  for (const Tie& c : cases) {
    Json json = {{"model_type", c.whole}, {"text_config", Json::object()}};
    if (!c.outer.is_null()) json["tie_word_embeddings"] = c.outer;
    if (!c.text.is_null()) json["text_config"]["tie_word_embeddings"] = c.text;
    const TextPart part = PartOf(json);
    EXPECT_EQ(part.json["tie_word_embeddings"], c.tied) << json;
    EXPECT_EQ(part.tie_unsaid, c.unsaid) << json;
  }
}

TEST(TextPart, WhatTheWholeSaysCounts) {
  Json json = PublishedGemma3();
  json["text_config"]["eos_token_id"] = 7;
  json["text_config"]["dtype"] = "float32";
  json["pad_token_id"] = 9;
  Json part = PartOf(json).json;
  EXPECT_EQ(part["eos_token_id"], Json({1, 106}));
  EXPECT_EQ(part["pad_token_id"], 9);
  EXPECT_EQ(part["torch_dtype"], "bfloat16");
  EXPECT_FALSE(part.contains("dtype"));
  json.erase("eos_token_id");
  EXPECT_EQ(PartOf(json).json["eos_token_id"], 7);
  // Refused by ParseHfConfig wherever it stands.
  json["quantization_config"] = {{"quant_method", "bitsandbytes"}};
  EXPECT_THAT(ParseHfConfig(PartOf(json).json, "c").status().message(),
              HasSubstr("quantization_config"));
}

TEST(TextPart, OtherFilesAreNoneOrAreRefusedByName) {
  EXPECT_FALSE(ValueOrThrow(TextPartOf({{"model_type", "llama"}}, "c")).has_value());
  EXPECT_FALSE(ValueOrThrow(TextPartOf({{"model_type", 3}}, "c")).has_value());
  EXPECT_FALSE(ValueOrThrow(TextPartOf(Json::array(), "c")).has_value());
  EXPECT_FALSE(ValueOrThrow(TextPartOf({{"model_type", "qwen2_5_omni"},
                                        {"text_config", {{"model_type", "qwen2"}}}},
                                       "c"))
                   .has_value());
  EXPECT_EQ(MessageOf({{"model_type", "gemma3"}}),
            "m/config.json: text_config: expected a map of the text model's keys, found none");
  EXPECT_EQ(MessageOf({{"model_type", "gemma3"}, {"text_config", {{"model_type", "llama"}}}}),
            "m/config.json: text_config: model_type: expected gemma3_text in a gemma3, found "
            "\"llama\"");
  EXPECT_EQ(MessageOf({{"model_type", "llava"}, {"text_config", {{"model_type", "cohere"}}}}),
            "m/config.json: text_config: model_type: expected one of llama, qwen2, qwen3, mistral, "
            "gemma3_text, qwen3_5_text, qwen3_5_moe_text, ministral3 as the text part of a llava, "
            "found \"cohere\"");
  Json capped = PublishedGemma3();
  capped["text_config"]["final_logit_softcapping"] = 30.0;
  EXPECT_THAT(MessageOf(capped),
              HasSubstr("text_config: final_logit_softcapping: 30.0 is not supported in a gemma3"));
  Json odd = PublishedGemma3();
  odd["tie_word_embeddings"] = "yes";
  EXPECT_THAT(MessageOf(odd), HasSubstr("m/config.json: tie_word_embeddings: expected true or"));
}

// Keys that a file gives are never overwritten by defaults, null among them.
TEST(TextPart, DefaultsAreOfKeysThatAreNotThere) {
  for (const FamilyTable& family : Families()) {
    if (family.text_defaults.empty()) continue;
    const Json defaults = Json::parse(family.text_defaults);
    const bool gemma = family.family == Family::kGemma3;
    Json json = {{"model_type", gemma ? "gemma3" : "llava"},
                 {"text_config", {{"model_type", family.model_type}, {"vocab_size", 77}}}};
    json["text_config"]["bos_token_id"] = nullptr;
    const Json part = PartOf(json).json;
    EXPECT_EQ(part["vocab_size"], 77);
    EXPECT_TRUE(part["bos_token_id"].is_null());
    for (const auto& [key, value] : defaults.items())
      EXPECT_TRUE(part[key] == value || key == "vocab_size" || key == "bos_token_id") << key;
    EXPECT_TRUE(ParseHfConfig(part, "c").ok()) << family.model_type;
  }
}

}  // namespace
}  // namespace keel::model
