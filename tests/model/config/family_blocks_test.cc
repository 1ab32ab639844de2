// What newer blocks have beside Llama's: norms by mean and variance, parts that stand beside each
// other, queries by their positions.

#include <gmock/gmock.h>

#include <utility>
#include <vector>

#include "model/config/family_table.h"
#include "model/config/hf_config.h"
#include "tests/model/config/small_config.h"

namespace keel::model {
namespace {

using ::testing::HasSubstr;

// Files of Cohere, StarCoder 2, StableLM, Nemotron and GPT-NeoX, as published and as exported.
TEST(FamilyBlocks, NormsByMeanAndVariance) {
  const auto read = [](const Json& own) {
    Json json = Small();
    json.update({{"hidden_size", 64}, {"num_attention_heads", 4}, {"num_hidden_layers", 4}});
    json.update(own);
    const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
    const HfConfig again = ValueOrThrow(ParseHfConfig(ToHfJson(config, DType::kF32, &json), "c"));
    EXPECT_EQ(again.Digest(), config.Digest());
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(ToHfJson(config, DType::kF32), "c")).Digest(),
              config.Digest());
    return config;
  };
  const HfConfig cohere = read({{"model_type", "cohere2"}, {"layer_norm_eps", 1e-3}});
  EXPECT_EQ(cohere.rms_norm_eps, 1e-3);
  EXPECT_EQ(cohere.logit_scale, 0.0625);
  EXPECT_EQ(ToHfJson(cohere, DType::kF32)["sliding_window_pattern"], 4);
  EXPECT_TRUE(cohere.tie_word_embeddings);
  EXPECT_EQ(cohere.Layer(2).window, 4096);
  EXPECT_EQ(cohere.Layer(2).rope, RopeChoice::kMain);
  EXPECT_EQ(cohere.Layer(3).window, 0);
  EXPECT_EQ(cohere.Layer(3).rope, RopeChoice::kNone);
  EXPECT_TRUE(cohere.Layer(0).parallel);
  EXPECT_FALSE(cohere.Layer(0).norm_of_ffn());
  EXPECT_FALSE(cohere.Layer(0).norm_bias);

  // As starcoder2-3b has them.
  const HfConfig coder = read({{"model_type", "starcoder2"},
                               {"num_key_value_heads", 2},
                               {"norm_epsilon", 1e-5},
                               {"layer_norm_epsilon", 1e-5},
                               {"norm_type", "layer_norm"},
                               {"mlp_type", "default"},
                               {"activation_function", "gelu"},
                               {"residual_dropout", 0.1},
                               {"embedding_dropout", 0.1},
                               {"sliding_window", 4096}});
  EXPECT_TRUE(coder.mlp_bias && coder.output_bias && coder.attention_bias);
  EXPECT_EQ(coder.activation, Activation::kGeluTanh);

  // As Pythia has them; and one whose parts follow each other.
  const HfConfig pythia = read({{"model_type", "gpt_neox"}, {"rotary_pct", 0.5}});
  EXPECT_EQ(pythia.activation, Activation::kGelu);
  EXPECT_EQ(pythia.rope.rotated, 0.5);
  EXPECT_TRUE(pythia.Layer(0).parallel && pythia.Layer(0).norm_of_ffn());
  const HfConfig serial =
      read({{"model_type", "gpt_neox"}, {"rotary_pct", 0.5}, {"use_parallel_residual", false}});
  EXPECT_NE(serial.Digest(), pythia.Digest());

  const HfConfig stable = read(
      {{"model_type", "stablelm"}, {"num_key_value_heads", 4}, {"use_parallel_residual", true}});
  EXPECT_FALSE(stable.Layer(0).norm_of_ffn());
  EXPECT_EQ(stable.rope.rotated, 0.25);
  const HfConfig nemotron = read({{"model_type", "nemotron"}});
  EXPECT_EQ(nemotron.activation, Activation::kRelu2);
  EXPECT_TRUE(nemotron.Layer(0).norm_plus_one && nemotron.Layer(0).norm_bias);
}

// As phi-2 and gpt-j-6b have them.
TEST(FamilyBlocks, BiasesOnLogits) {
  const auto read = [](const Json& own, const char* lacks) {
    Json json = Small();
    for (const char* key : {"hidden_size", "num_attention_heads", "num_key_value_heads"})
      json.erase(key);
    json.erase(lacks);
    json.update(own);
    return ParseHfConfig(json, "c.json");
  };
  Json own = {{"model_type", "phi"},      {"hidden_size", 64},
              {"num_attention_heads", 4}, {"num_key_value_heads", nullptr},
              {"hidden_act", "gelu_new"}, {"layer_norm_eps", 1e-5},
              {"qk_layernorm", false},    {"partial_rotary_factor", 0.4},
              {"embd_pdrop", 0.0},        {"resid_pdrop", 0.1},
              {"rope_scaling", nullptr}};
  const HfConfig phi = ValueOrThrow(read(own, "rms_norm_eps"));
  EXPECT_TRUE(phi.head_bias() && phi.attention_bias && phi.output_bias && phi.mlp_bias);
  EXPECT_FALSE(phi.Layer(0).norm_of_ffn());
  EXPECT_EQ(phi.rope.RotatedDims(phi.head_dim), 6);
  EXPECT_FALSE(phi.rope.interleaved);
  own["qk_layernorm"] = true;
  EXPECT_THAT(read(own, "rms_norm_eps").status().message(), HasSubstr("qk_layernorm"));

  own = {{"model_type", "gptj"},  {"n_embd", 88},       {"n_head", 2},
         {"n_positions", 64},     {"rotary_dim", 30},   {"n_inner", nullptr},
         {"rotary", true},        {"attn_pdrop", 0.0},  {"activation_function", "gelu_new"},
         {"n_ctx", 64},           {"embd_pdrop", 0.0},  {"scale_attn_weights", true},
         {"summary_type", "cls"}, {"resid_pdrop", 0.0}, {"layer_norm_epsilon", 1e-5}};
  const HfConfig gptj = ValueOrThrow(read(own, "intermediate_size"));
  EXPECT_TRUE(gptj.head_bias() && gptj.mlp_bias);
  EXPECT_FALSE(gptj.attention_bias || gptj.output_bias || gptj.Layer(0).norm_of_ffn());
  EXPECT_EQ(gptj.intermediate_size, 352);
  // 44 times 30 / 44 is below 30 as numbers are rounded.
  EXPECT_EQ(gptj.rope.RotatedDims(gptj.head_dim), 30);
  EXPECT_TRUE(gptj.rope.interleaved);
  EXPECT_EQ(ToHfJson(gptj, DType::kF32)["rotary_dim"], 30);
  for (const auto& [key, value] : std::vector<std::pair<std::string, Json>>{
           {"rotary_dim", nullptr},
           {"rotary_dim", 46},
           {"rotary_dim", 5},
           {"num_key_value_heads", 1},
           {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}}) {
    Json other = own;
    other[key] = value;
    EXPECT_THAT(read(other, "intermediate_size").status().message(), HasSubstr(key));
  }
}

// As Ministral-3-3B has them.
TEST(FamilyBlocks, QueriesAreMultipliedByTheirPositions) {
  Json json = Small();
  json.update({{"model_type", "ministral3"},
               {"num_key_value_heads", 2},
               {"rope_parameters",
                {{"beta_fast", 32.0},
                 {"beta_slow", 1.0},
                 {"factor", 16.0},
                 {"llama_4_scaling_beta", 0.1},
                 {"mscale", 1.0},
                 {"mscale_all_dim", 1.0},
                 {"original_max_position_embeddings", 16384},
                 {"rope_theta", 1000000.0},
                 {"rope_type", "yarn"},
                 {"type", "yarn"}}}});
  const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(config.rope.query_beta, 0.1);
  EXPECT_EQ(config.rope.query_positions, 16384);
  EXPECT_EQ(config.rope.attention_factor, 1);
  EXPECT_EQ(config.head_dim, 128);
  EXPECT_EQ(ValueOrThrow(ParseHfConfig(ToHfJson(config, DType::kBF16), "c")).rope, config.rope);
  Json other = json;
  other["rope_parameters"]["llama_4_scaling_beta"] = 0.2;
  EXPECT_NE(ValueOrThrow(ParseHfConfig(other, "c")).Digest(), config.Digest());
  other["rope_parameters"].erase("llama_4_scaling_beta");
  EXPECT_THAT(ParseHfConfig(other, "c").status().message(),
              HasSubstr("llama_4_scaling_beta: missing"));
  json.erase("rope_parameters");
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(), HasSubstr("rope_parameters: missing"));
}

// As gpt2, TinyStories-33M and opt-125m have them, whose keys have names of their own.
TEST(FamilyBlocks, LearnedPositions) {
  const auto read = [](const Json& json) {
    const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
    for (const Json& written :
         {ToHfJson(config, DType::kF32), ToHfJson(config, DType::kF32, &json)}) {
      EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), config.Digest());
      for (const char* other : {"num_attention_heads", "num_hidden_layers"})
        EXPECT_EQ(written.contains(other), json.contains(other)) << other;
      EXPECT_FALSE(written.contains("rope_theta") || written.contains("head_dim"));
    }
    return config;
  };
  Json gpt2 = {{"model_type", "gpt2"},
               {"n_embd", 768},
               {"n_head", 12},
               {"n_layer", 12},
               {"n_positions", 1024},
               {"n_ctx", 1024},
               {"n_inner", nullptr},
               {"vocab_size", 50257},
               {"attn_pdrop", 0.1},
               {"resid_pdrop", 0.1},
               {"embd_pdrop", 0.1},
               {"activation_function", "gelu_new"},
               {"layer_norm_epsilon", 1e-5}};
  const HfConfig config = read(gpt2);
  EXPECT_EQ(config.intermediate_size, 3072);
  EXPECT_EQ(config.head_dim, 64);
  EXPECT_EQ(config.learned_positions().rows, 1024);
  EXPECT_EQ(config.attention_dropout, 0.1);
  EXPECT_TRUE(config.tie_word_embeddings && config.attention_bias && config.mlp_bias);
  EXPECT_EQ(config.Layer(3).score_scale, 0);
  EXPECT_EQ(config.NumParameters(), 124'439'808);  // as everybody counts them
  gpt2["scale_attn_by_inverse_layer_idx"] = true;
  EXPECT_EQ(read(gpt2).Layer(3).score_scale, 1.0 / 8 / 4);
  gpt2["scale_attn_weights"] = false;
  EXPECT_EQ(read(gpt2).Layer(3).score_scale, 1.0 / 4);
  gpt2["hidden_size"] = 768;  // by both names
  EXPECT_TRUE(ParseHfConfig(gpt2, "c").ok());
  gpt2["hidden_size"] = 770;
  EXPECT_THAT(ParseHfConfig(gpt2, "c").status().message(),
              HasSubstr("n_embd is 768 and hidden_size is 770: they are one key"));
  gpt2.erase("hidden_size");
  gpt2["n_head"] = 7;
  EXPECT_THAT(ParseHfConfig(gpt2, "c").status().message(),
              HasSubstr("n_embd 768 is not a multiple of n_head 7"));
  gpt2.erase("n_head");
  EXPECT_THAT(ParseHfConfig(gpt2, "c").status().message(), HasSubstr("n_head: missing"));

  // As tiny_starcoder_py has it, and one whose heads have keys of their own.
  Json code = {{"model_type", "gpt_bigcode"},
               {"n_embd", 768},
               {"n_head", 12},
               {"n_layer", 20},
               {"n_positions", 8192},
               {"n_inner", 3072},
               {"vocab_size", 49152},
               {"multi_query", true}};
  const HfConfig star = read(code);
  EXPECT_EQ(star.num_key_value_heads, 1);
  EXPECT_EQ(star.Layer(0).qkv, QkvTensors::kJoined);
  EXPECT_FALSE(star.Layer(0).input_rows);
  EXPECT_EQ(star.NumParameters(), 164'144'128);
  code["multi_query"] = false;
  EXPECT_EQ(read(code).Layer(0).qkv, QkvTensors::kByHead);
  EXPECT_EQ(read(code).num_key_value_heads, 12);
  code["num_key_value_heads"] = 3;
  EXPECT_THAT(ParseHfConfig(code, "c").status().message(),
              HasSubstr("num_key_value_heads: expected 12, as multi_query says"));

  Json neo = {{"model_type", "gpt_neo"},
              {"hidden_size", 768},
              {"num_heads", 16},
              {"num_layers", 4},
              {"window_size", 256},
              {"vocab_size", 50257},
              {"intermediate_size", nullptr}};
  neo["attention_types"] = Json::parse(R"([[["global", "local"], 2]])");
  neo["attention_layers"] = {"global", "local", "global", "local"};
  const HfConfig stories = read(neo);
  EXPECT_EQ(stories.Layer(0).window, 0);
  EXPECT_EQ(stories.Layer(3).window, 256);
  EXPECT_EQ(stories.Layer(3).score_scale, 1);
  EXPECT_TRUE(!stories.attention_bias && stories.output_bias);
  neo["attention_layers"][2] = "local";
  EXPECT_THAT(ParseHfConfig(neo, "c").status().message(),
              HasSubstr("expected what attention_types says (global, local, global, local)"));
  neo["attention_types"] = Json::parse(R"([[["global", "local"], 200000000000]])");
  EXPECT_THAT(ParseHfConfig(neo, "c").status().message(), HasSubstr("for num_layers (4)"));
  // Numbers that no model has are refused before anything is counted out by them.
  for (const int64_t layers : {int64_t{-1}, int64_t{1} << 60}) {
    neo["num_layers"] = layers;
    EXPECT_THAT(ParseHfConfig(neo, "c").status().message(), HasSubstr("num_layers: expected"));
  }
  gpt2["n_embd"] = int64_t{1} << 62;
  EXPECT_THAT(ParseHfConfig(gpt2, "c").status().message(), HasSubstr("n_embd: expected"));

  Json opt = {{"model_type", "opt"},
              {"hidden_size", 768},
              {"num_attention_heads", 12},
              {"ffn_dim", 3072},
              {"num_hidden_layers", 12},
              {"vocab_size", 50272},
              {"dropout", 0.1},
              {"word_embed_proj_dim", 768},
              {"do_layer_norm_before", true},
              {"init_std", 0.02},
              {"max_position_embeddings", 2048}};
  const HfConfig small = read(opt);
  EXPECT_EQ(small.activation, Activation::kRelu);
  EXPECT_EQ(small.learned_positions().rows, 2050);
  EXPECT_EQ(small.learned_positions().first, 2);
  EXPECT_EQ(small.NumParameters(), 125'239'296);
  for (const auto& [key, value] : std::vector<std::pair<const char*, Json>>{
           {"do_layer_norm_before", false},
           {"word_embed_proj_dim", 512},
           {"layer_norm_elementwise_affine", false},
           {"_remove_final_layer_norm", true},
           {"layer_norm_eps", 1e-6},
           {"rope_scaling", {{"rope_type", "linear"}, {"factor", 2}}}}) {
    Json other = opt;
    other[key] = value;
    EXPECT_THAT(ParseHfConfig(other, "c").status().message(), HasSubstr(key));
  }
}

TEST(FamilyBlocks, WhatThoseDoNotComputeIsRefused) {
  const auto message = [](const Json& own) {
    Json json = Small();
    json.update({{"hidden_size", 64}, {"num_attention_heads", 4}});
    json.update(own);
    const auto config = ParseHfConfig(json, "c.json");
    return config.ok() ? std::string() : config.status().message();
  };
  EXPECT_THAT(message({{"model_type", "cohere"}}),
              HasSubstr("rope_theta: missing, expected a number: transformers 4 takes 10000"));
  EXPECT_EQ(message({{"model_type", "cohere"}, {"rope_parameters", {{"rope_theta", 7}}}}), "");
  for (const char* other : {"partial_rotary_factor", "rope_theta"})
    EXPECT_THAT(message({{"model_type", "gpt_neox"}, {other, 0.5}}), HasSubstr(other));
  EXPECT_EQ(message({{"model_type", "gpt_neox"}, {"partial_rotary_factor", 0.25}}), "");
  EXPECT_THAT(message({{"model_type", "cohere"}, {"use_qk_norm", true}}),
              HasSubstr("use_qk_norm: true is not supported for model_type cohere"));
  EXPECT_THAT(message({{"model_type", "cohere2"}, {"sliding_window", nullptr}}),
              HasSubstr("sliding_window: missing"));
  EXPECT_THAT(message({{"model_type", "cohere2"}, {"head_dim", 8}}),
              HasSubstr("head_dim 8: expected hidden_size / num_attention_heads (16)"));
  EXPECT_THAT(
      message({{"model_type", "stablelm"}, {"num_key_value_heads", 4}, {"qk_layernorm", true}}),
      HasSubstr("qk_layernorm: true is not supported"));
  EXPECT_THAT(
      message(
          {{"model_type", "starcoder2"}, {"num_key_value_heads", 2}, {"norm_type", "rms_norm"}}),
      HasSubstr("norm_type: expected layer_norm"));
  EXPECT_THAT(message({{"model_type", "gpt_neox"}, {"rope_theta", 7}}),
              HasSubstr("rope_theta: expected rotary_emb_base (10000)"));
  EXPECT_THAT(message({{"model_type", "gpt_neox"}, {"num_key_value_heads", 2}}),
              HasSubstr("num_key_value_heads: expected num_attention_heads"));
  EXPECT_THAT(message({{"model_type", "gpt_neox"}, {"hidden_act", "silu"}}),
              HasSubstr("\"silu\" is not supported, expected relu, relu2, gelu or "
                        "gelu_pytorch_tanh"));
  EXPECT_THAT(message({{"model_type", "llama"}, {"hidden_act", "gelu"}}),
              HasSubstr("expected silu or gelu_pytorch_tanh"));
}

}  // namespace
}  // namespace keel::model
