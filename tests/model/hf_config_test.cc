#include "model/hf_config.h"

#include <gmock/gmock.h>

#include <string>

namespace keel::model {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;

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

TEST(HfConfig, AnExportKeepsTheEnds) {
  for (const Json& value : {Json(nullptr), Json(7), Json::array({7, 9})}) {
    Json json = Small();
    json["eos_token_id"] = value;
    const auto config = ValueOrThrow(ParseHfConfig(json, "c"));
    EXPECT_EQ(ToHfJson(config, DType::kF32, &json)["eos_token_id"], value);
  }
}

}  // namespace
}  // namespace keel::model
