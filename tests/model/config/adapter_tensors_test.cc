// Which weights of a model have an adapter, and what its tensors are.

#include "model/config/adapter_tensors.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "model/config/hf_tensors.h"
#include "tests/model/config/small_config.h"

namespace keel::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
using ::testing::Not;

HfConfig Adapted(Json json, std::vector<std::string> targets = {},
                 std::vector<std::string> excluded = {}) {
  HfConfig config = ValueOrThrow(ParseHfConfig(json, "config.json"));
  config.adapter = {.rank = 2, .alpha = 6, .targets = std::move(targets)};
  config.adapter.excluded = std::move(excluded);
  return config;
}

std::vector<std::string> Modules(const HfConfig& config) {
  std::vector<std::string> modules;
  for (const TensorInfo& tensor : AdapterTensorsOf(config)) {
    const size_t end = tensor.name.find(".lora_A");
    if (end == std::string::npos) continue;
    const std::string path = tensor.name.substr(0, end);
    modules.push_back(path.substr(path.find('.', std::string_view("model.layers.").size()) + 1));
  }
  return modules;
}

TEST(AdapterTensorsTest, AreAAndBOfEachMatrixInALayer) {
  const HfConfig config = Adapted(Small(), {"k_proj", "down_proj"});
  const std::vector<TensorInfo> tensors = AdapterTensorsOf(config);
  const std::vector<TensorInfo> wanted = {
      {"model.layers.0.self_attn.k_proj.lora_A.weight", DType::kF32, {2, 8}},
      {"model.layers.0.self_attn.k_proj.lora_B.weight", DType::kF32, {8, 2}},
      {"model.layers.0.mlp.down_proj.lora_A.weight", DType::kF32, {2, 16}},
      {"model.layers.0.mlp.down_proj.lora_B.weight", DType::kF32, {8, 2}}};
  EXPECT_EQ(tensors, wanted);
  EXPECT_THAT(Modules(Adapted(Small())),
              ElementsAre("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                          "self_attn.o_proj", "mlp.gate_proj", "mlp.up_proj", "mlp.down_proj"));
  EXPECT_TRUE(AdapterTensorsOf(ValueOrThrow(ParseHfConfig(Small(), ""))).empty());
}

TEST(AdapterTensorsTest, NamesAreEndsOfPathsAsInPeft) {
  const auto modules = [](std::vector<std::string> targets, std::vector<std::string> excluded) {
    return Modules(Adapted(Small(), std::move(targets), std::move(excluded)));
  };
  EXPECT_THAT(modules({"proj"}, {}), IsEmpty());  // no whole name
  EXPECT_THAT(modules({"self_attn.q_proj"}, {}), ElementsAre("self_attn.q_proj"));
  EXPECT_THAT(modules({"model.layers.0.mlp.up_proj"}, {}), ElementsAre("mlp.up_proj"));
  EXPECT_THAT(modules({"q_proj", "v_proj"}, {"self_attn.q_proj"}), ElementsAre("self_attn.v_proj"));
}

TEST(AdapterTensorsTest, ExpertsAndWhatChoosesThemHaveNone) {
  Json routed = Small();
  routed["model_type"] = "dots1";
  routed["num_key_value_heads"] = 2;
  routed.update(Routed());
  EXPECT_THAT(Modules(Adapted(routed)),
              ElementsAre("self_attn.q_proj", "self_attn.k_proj", "self_attn.v_proj",
                          "self_attn.o_proj", "mlp.shared_experts.gate_proj",
                          "mlp.shared_experts.up_proj", "mlp.shared_experts.down_proj"));
  EXPECT_TRUE(IsConstant(Adapted(routed), "model.layers.0.mlp.gate.e_score_correction_bias"));
  EXPECT_FALSE(IsConstant(Adapted(routed), "model.layers.0.mlp.gate.weight"));
  EXPECT_FALSE(IsConstant(Adapted(Small()), "model.layers.0.mlp.gate_proj.weight"));
}

TEST(AdapterTensorsTest, WhatFitsNoModuleIsNamed) {
  EXPECT_THAT(AdapterProblems(Adapted(Small())), IsEmpty());
  EXPECT_THAT(AdapterProblems(Adapted(Small(), {"q_proj", "query"})),
              ElementsAre(AllOf(HasSubstr("target_modules: query"), HasSubstr("o_proj, q_proj"),
                                Not(HasSubstr("q_proj: no")))));
  EXPECT_THAT(AdapterProblems(Adapted(Small(), {}, {"lm_head", "embed_tokens"})), IsEmpty());
  EXPECT_THAT(AdapterProblems(Adapted(Small(), {}, {"head"})),
              ElementsAre(HasSubstr("exclude_modules: head")));
  EXPECT_THAT(AdapterProblems(Adapted(Small(), {"q_proj"}, {"q_proj"})),
              ElementsAre(HasSubstr("leaves no module")));
}

TEST(AdapterTensorsTest, ScaleAndDigest) {
  AdapterSpec spec = {.rank = 4, .alpha = 6};
  EXPECT_EQ(spec.scale(), 1.5);
  spec.rank_stabilized = true;
  EXPECT_EQ(spec.scale(), 3);
  const HfConfig base = ValueOrThrow(ParseHfConfig(Small(), ""));
  const HfConfig one = Adapted(Small());
  HfConfig other = one;
  other.adapter.alpha = 7;
  EXPECT_NE(base.Digest(), one.Digest());
  EXPECT_NE(one.Digest(), other.Digest());
  EXPECT_NE(one.Digest(), Adapted(Small(), {"q_proj"}).Digest());
  // However they are named.
  EXPECT_EQ(Adapted(Small(), {"q_proj"}).Digest(),
            Adapted(Small(), {"model.layers.0.self_attn.q_proj"}).Digest());
}

}  // namespace
}  // namespace keel::model
