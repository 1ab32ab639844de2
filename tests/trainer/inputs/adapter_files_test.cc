// adapter_config.json: what is read of it, what is refused, and what is written.

#include "trainer/inputs/adapter_files.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include "tests/model/config/small_config.h"

namespace keel::trainer {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

const char* const kLeast = R"("r": 8, "lora_alpha": 16)";

Result<AdapterConfig> Parse(const std::string& keys) {
  return ParseAdapterConfig("{" + keys + "}", "a/adapter_config.json");
}

TEST(AdapterFilesTest, WhatPeftWritesIsRead) {
  const auto read = Parse(
      R"("peft_type": "LORA", "r": 8, "lora_alpha": 16, "use_rslora": true, "lora_dropout": 0.1,
         "target_modules": ["q_proj", "v_proj"], "exclude_modules": ["o_proj"], "bias": "none",
         "modules_to_save": null, "rank_pattern": {}, "alpha_pattern": {}, "use_dora": false,
         "base_model_name_or_path": "/models/base", "init_lora_weights": true,
         "layers_to_transform": null, "fan_in_fan_out": true, "revision": null)");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->spec.rank, 8);
  EXPECT_DOUBLE_EQ(read->spec.scale(), 16 / std::sqrt(8.0));
  EXPECT_THAT(read->spec.targets, ElementsAre("q_proj", "v_proj"));
  EXPECT_THAT(read->spec.excluded, ElementsAre("o_proj"));
  EXPECT_TRUE(read->names_modules);
  EXPECT_EQ(read->dropout, 0.1);
  EXPECT_EQ(read->base, "/models/base");
  const auto least = Parse(std::string(kLeast) + R"(, "target_modules": "all-linear")");
  ASSERT_TRUE(least.ok());
  EXPECT_THAT(least->spec.targets, IsEmpty());
  EXPECT_EQ(least->spec.scale(), 2);
  EXPECT_EQ(least->base, "");
  // A text is an expression to PEFT, which says nothing of Keel's names.
  const auto expression = Parse(std::string(kLeast) + R"(, "target_modules": ["q_proj"],
      "exclude_modules": ".*layers\\.1\\..*")");
  ASSERT_TRUE(expression.ok());
  EXPECT_THAT(expression->spec.excluded, IsEmpty());
  EXPECT_FALSE(expression->names_modules);
}

TEST(AdapterFilesTest, WhatKeelDoesNotComputeIsRefusedByItsKey) {
  for (const char* key :
       {R"("peft_type": "LOHA")", R"("use_dora": true)", R"("bias": "lora_only")",
        R"("lora_bias": true)", R"("modules_to_save": ["lm_head"])", R"("rank_pattern": {"q": 4})",
        R"("alpha_pattern": {"q": 4})", R"("layers_to_transform": [0])",
        R"("layer_replication": [[0, 1]])", R"("target_parameters": ["experts"])",
        R"("trainable_token_indices": [5])", R"("init_lora_weights": "olora")"}) {
    const auto read = Parse(std::string(kLeast) + ", " + key);
    ASSERT_EQ(read.status().code(), StatusCode::kInvalidData) << key;
    const std::string name = std::string(key).substr(1, std::string(key).find('"', 1) - 1);
    EXPECT_THAT(read.status().message(), HasSubstr("a/adapter_config.json: " + name));
  }
  for (const char* keys :
       {R"("r": 0, "lora_alpha": 1)", R"("r": 99999, "lora_alpha": 1)", R"("lora_alpha": 1)",
        R"("r": 1)", R"("r": 1, "lora_alpha": 0)", R"("r": 1, "lora_alpha": NaN)",
        R"("r": "8", "lora_alpha": 1)", R"("r": 1, "lora_alpha": 1, "target_modules": [1])"}) {
    EXPECT_EQ(Parse(keys).status().code(), StatusCode::kInvalidData) << keys;
  }
  EXPECT_EQ(ParseAdapterConfig("[]", "x").status().code(), StatusCode::kInvalidData);
}

TEST(AdapterFilesTest, SomeOfALayersModulesAreWrittenByTheirPaths) {
  Json two = model::Small();
  two["num_hidden_layers"] = 2;
  model::HfConfig config = ValueOrThrow(model::ParseHfConfig(two, ""));
  config.adapter = {.rank = 2, .alpha = 2, .targets = {"layers.1.self_attn.q_proj", "v_proj"}};
  const auto read = ParseAdapterConfig(AdapterConfigText(config, ""), "x");
  ASSERT_TRUE(read.ok());
  model::HfConfig again = config;
  again.adapter = read->spec;
  EXPECT_EQ(again.Digest(), config.Digest());
  EXPECT_EQ(read->spec.targets.size(), 3u);
}

TEST(AdapterFilesTest, TheBaseIsWrittenAndReadAgain) {
  const model::HfConfig config = ValueOrThrow(model::ParseHfConfig(model::Small(), ""));
  const auto documents = AdapterDocuments(config, "", {0xfedcba9876543210, DType::kBF16});
  ASSERT_EQ(documents.size(), 2u);
  EXPECT_EQ(documents[1].path, AdapterBase::kPath);
  const auto read = ParseAdapterBase(documents[1].content, "x");
  ASSERT_TRUE(read.ok()) << read.status().message();
  EXPECT_EQ(read->digest, 0xfedcba9876543210);
  EXPECT_EQ(read->dtype, DType::kBF16);
  for (const char* wrong :
       {R"({"format_version": 2, "digest": "0000000000000001", "dtype": "float32"})",
        R"({"format_version": 1, "digest": "1", "dtype": "float32"})",
        R"({"format_version": 1, "digest": "000000000000000g", "dtype": "float32"})",
        R"({"format_version": 1, "digest": "0000000000000001", "dtype": "float16"})", "{}"}) {
    EXPECT_EQ(ParseAdapterBase(wrong, "x").status().code(), StatusCode::kInvalidData) << wrong;
  }
}

TEST(AdapterFilesTest, WhatIsWrittenIsReadAgain) {
  model::HfConfig config = ValueOrThrow(model::ParseHfConfig(model::Small(), ""));
  config.adapter = {4, 6, true, {"q_proj", "up_proj"}, {}};
  const auto read = ParseAdapterConfig(AdapterConfigText(config, "/models/base"), "x");
  ASSERT_TRUE(read.ok()) << read.status().message();
  model::HfConfig again = config;
  again.adapter = read->spec;
  EXPECT_EQ(again.Digest(), config.Digest());
  EXPECT_EQ(read->base, "/models/base");
  EXPECT_EQ(AdapterRemark(config), "160 parameters of rank 4 learn, beside 2 weights");
  // Where experts have modules of the same names, by more of their paths.
  Json routed = model::Small();
  routed["model_type"] = "dots1";
  routed["num_key_value_heads"] = 2;
  routed.update(model::Routed());
  config = ValueOrThrow(model::ParseHfConfig(routed, ""));
  config.adapter = {.rank = 4, .alpha = 6};
  const Json json = Json::parse(AdapterConfigText(config, ""));
  EXPECT_THAT(json["target_modules"].get<std::vector<std::string>>(),
              ::testing::Contains("model.layers.0.mlp.shared_experts.up_proj"));
  EXPECT_TRUE(json["base_model_name_or_path"].is_null());
}

}  // namespace
}  // namespace keel::trainer
