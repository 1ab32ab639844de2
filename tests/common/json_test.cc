#include "common/json.h"

#include <gtest/gtest.h>

namespace keel {
namespace {

TEST(JsonTest, RefusesWhatWouldBeReadAmiss) {
  for (const char* text : {R"({"a":1,"a":2})", R"({"a":18446744073709551616})", "{", "[1,]", "1 2",
                           "", "{\"a\":1e999}", "nul"}) {
    const auto json = ParseJson(text, "f.json:3");
    ASSERT_FALSE(json.ok()) << text;
    EXPECT_EQ(json.status().code(), StatusCode::kInvalidData);
    EXPECT_EQ(json.status().message().rfind("f.json:3: ", 0), 0u) << json.status().message();
  }
  EXPECT_NE(ParseJson(R"({"a":1,"a":2})", "x").status().message().find("duplicate key \"a\""),
            std::string::npos);
}

TEST(JsonTest, BoundsDepth) {
  const std::string deep = std::string(65, '[') + std::string(65, ']');
  EXPECT_FALSE(ParseJson(deep, "x").ok());
  EXPECT_TRUE(ParseJson(deep.substr(1, 128), "x").ok());
  EXPECT_FALSE(ParseJson(std::string(1'000'000, '['), "x").ok());
}

TEST(JsonTest, KeepsIntegersExactAndKeysInOrder) {
  const Json json =
      ValueOrThrow(ParseJson(R"({"z":9223372036854775807,"a":[true,null,-0.5]})", "x"));
  EXPECT_EQ(ValueOrThrow(GetInt(json, "z", "x")), INT64_MAX);
  EXPECT_EQ(json.dump(), R"({"z":9223372036854775807,"a":[true,null,-0.5]})");
  EXPECT_FALSE(GetInt(json, "a", "x").ok());
  EXPECT_FALSE(GetString(json, "missing", "x").ok());
  EXPECT_FALSE(
      GetInt(ValueOrThrow(ParseJson(R"({"b":18446744073709551615})", "x")), "b", "x").ok());
}

}  // namespace
}  // namespace keel
