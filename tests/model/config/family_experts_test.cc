// What configurations say of experts, by family.

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <utility>
#include <vector>

#include "model/config/family_table.h"
#include "model/config/hf_config.h"
#include "model/config/hf_tensors.h"
#include "tests/model/config/small_config.h"

namespace keel::model {
namespace {

using ::testing::HasSubstr;

TEST(FamilyExperts, ExpertsOfDeepSeeksRouter) {
  Json json = Small();
  json.update(Routed());
  json.update({{"model_type", "dots1"},
               {"num_hidden_layers", 3},
               {"num_key_value_heads", 2},
               {"n_group", 4},
               {"topk_group", 2},
               {"routed_scaling_factor", 2.5},
               {"first_k_dense_replace", 1}});
  const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(config.dense_ffn, std::vector<bool>({true, false, false}));
  EXPECT_EQ(config.Layer(0).ffn, FfnKind::kDense);
  const MoeSpec moe = config.Layer(2).moe;
  EXPECT_EQ(moe, (MoeSpec{.experts = 8,
                          .top_k = 2,
                          .width = 4,
                          .score = RouterScore::kSigmoid,
                          .fp32_router = true,
                          .choice_bias = true,
                          .groups = 4,
                          .top_groups = 2,
                          .scale = 2.5,
                          .shared_width = 8,
                          .shared_gated = false}));
  // The biases of the choice are constants: 8 in each of the two layers with experts.
  int64_t elements = 0;
  for (const TensorInfo& tensor : TensorsOf(config, Head::kVocabulary).needed)
    elements += tensor.shape.elements();
  EXPECT_EQ(config.NumParameters(), elements - 16);

  const auto message = [&](const Json& changes) {
    Json changed = json;
    changed.update(changes);
    const auto found = ParseHfConfig(changed, "c");
    return found.ok() ? std::string() : found.status().message();
  };
  EXPECT_EQ(message({{"num_local_experts", 8}}), "");
  EXPECT_THAT(message({{"num_local_experts", 4}}),
              HasSubstr("n_routed_experts is 8 and num_local_experts 4: leave one out"));
  EXPECT_THAT(message({{"n_group", 3}}), HasSubstr("expected groups of equal size, of 2 or more"));
  EXPECT_THAT(message({{"n_group", 8}}), HasSubstr("expected groups of equal size, of 2 or more"));
  EXPECT_THAT(message({{"topk_group", 5}}), HasSubstr("have 8 experts together"));
  EXPECT_THAT(
      message({{"num_experts_per_tok", 5}}),
      HasSubstr("num_experts_per_tok 5: topk_group 2 of n_group 4 have 4 experts together"));
  EXPECT_THAT(message({{"n_routed_experts", nullptr}}), HasSubstr("n_routed_experts"));
  EXPECT_THAT(message({{"first_k_dense_replace", -1}}), HasSubstr("first_k_dense_replace"));
  EXPECT_EQ(message({{"model_type", "glm4_moe"}, {"num_nextn_predict_layers", 2}}), "");
  // Of a family that has none of it they are no keys.
  EXPECT_THAT(message({{"model_type", "llama"}}),
              HasSubstr("n_routed_experts: 8 is not supported"));
}

TEST(FamilyExperts, ExpertsAreReadAndWrongOnesRefused) {
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

TEST(FamilyExperts, TheSharedExpertIsReadAndWritten) {
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
              HasSubstr("hidden_act: \"silu\" is not supported, expected relu, relu2"));
  json.update({{"model_type", "llama"}, {"hidden_act", "relu2"}});
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(), HasSubstr("expected silu or gelu"));
}

// gpt-oss: the limits are another model's where they differ, and an export says all of it.
TEST(FamilyExperts, ClampedOnesAreReadAndWritten) {
  Json json = Small();
  json.update({{"model_type", "gpt_oss"},
               {"num_hidden_layers", 2},
               {"num_key_value_heads", 2},
               {"num_local_experts", 6},
               {"num_experts_per_tok", 2},
               {"rope_parameters", {{"rope_type", "default"}, {"rope_theta", 5000.0}}}});
  const HfConfig config = ValueOrThrow(ParseHfConfig(json, "c"));
  EXPECT_EQ(config.moe.kind, ExpertKind::kClamped);
  EXPECT_EQ(config.moe.width, config.intermediate_size);
  EXPECT_EQ(config.moe.gate_alpha, 1.702);
  EXPECT_EQ(config.moe.gate_limit, 7);
  EXPECT_TRUE(config.attention_bias && config.output_bias && config.Layer(0).sinks);
  EXPECT_EQ(config.Layer(0).window, 128);
  EXPECT_EQ(config.Layer(1).window, 0);
  for (const auto& [key, value] :
       {std::pair{"swiglu_limit", 0.5}, std::pair{"swiglu_alpha", 1.0}}) {
    Json other = json;
    other[key] = value;
    const HfConfig read = ValueOrThrow(ParseHfConfig(other, "c"));
    EXPECT_NE(read.Digest(), config.Digest()) << key;
    const Json written = ToHfJson(read, DType::kF32);
    EXPECT_EQ(written[key], value);
    EXPECT_EQ(ValueOrThrow(ParseHfConfig(written, "c")).Digest(), read.Digest());
    other[key] = -1;
    EXPECT_THAT(ParseHfConfig(other, "c").status().message(), HasSubstr(key));
  }
  json.erase("rope_parameters");
  EXPECT_THAT(ParseHfConfig(json, "c").status().message(), HasSubstr("rope_parameters: missing"));
}

}  // namespace
}  // namespace keel::model
