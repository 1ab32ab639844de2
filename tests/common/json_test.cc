#include "common/json.h"

#include <gtest/gtest.h>

#include <cstdio>
#include <string>
#include <utility>
#include <vector>

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

TEST(JsonTest, SaysWhereAndWhat) {
  const auto message = [](std::string_view text) {
    return ParseJson(text, "f", {.max_depth = 3}).status().message();
  };
  const std::pair<std::string, std::string> cases[] = {
      // The last character of what is wrong.
      {R"({"a":1,"a":2})", "f: line 1, column 10: duplicate key \"a\""},
      {"{\"a\":1,\n \"a\":2}", "f: line 2, column 4: duplicate key \"a\""},
      {R"([[[[1]]]])", "f: line 1, column 4: nested deeper than 3 levels"},
      {"[\n\n  18446744073709551616]",
       "f: line 3, column 22: integer out of range: 18446744073709551616"},
      {"18446744073709551616", "f: line 1, column 20: integer out of range: 18446744073709551616"},
      {"[-9223372036854775809\n]",
       "f: line 1, column 21: integer out of range: -9223372036854775809"},
      {"[1e999\n]", "f: line 1, column 6: number overflow parsing '1e999'"},
      {"[1, 2 3]", "f: line 1, column 7: syntax error"},
      {"[1, 2\n3]", "f: line 2, column 1: syntax error"},
      {"[1,]", "f: line 1, column 4: syntax error"},
      {"{\"a\" 1}", "f: line 1, column 6: syntax error"},
      {"[trux]", "f: line 1, column 5: syntax error"},
      {"1 2", "f: line 1, column 3: syntax error"},
      {"[\"ab\ncd\"]", "f: line 1, column 5: syntax error"},
      // The end of the text is where one character more was expected.
      {"", "f: line 1, column 1: syntax error"},
      {"{", "f: line 1, column 2: syntax error"},
      {"[1,\n", "f: line 2, column 1: syntax error"},
      {"[1, 22", "f: line 1, column 7: syntax error"},
      {"nul", "f: line 1, column 4: syntax error"},
      // Columns count characters.
      {"[\"\xc3\xa9\xe2\x82\xac\" 1]", "f: line 1, column 7: syntax error"},
      {"[\"\xc3(\"]", "f: line 1, column 4: syntax error"},
      // The parser itself takes a zero byte for the end.
      {std::string("{}\0garbage", 10), "f: line 1, column 3: a zero byte"},
      {std::string("[\"a\n\0\"]", 8), "f: line 2, column 1: a zero byte"},
  };
  for (const auto& [text, expected] : cases) {
    EXPECT_EQ(message(text).substr(0, expected.size()), expected) << text << "\n" << message(text);
    EXPECT_EQ(message(text).find("json.exception"), std::string::npos) << message(text);
    EXPECT_EQ(message(text).find('\n'), std::string::npos) << message(text);
  }
}

TEST(JsonTest, EveryPlaceIsInTheText) {
  // Damage anywhere: the place is never outside, and the message is one line.
  const std::string whole =
      "{\"name\": [1, -2.5e3, true, null,\n  {\"k\\u00e9\": \"v\"}],\n \"n\": "
      "18446744073709551615}\n";
  ASSERT_TRUE(ParseJson(whole, "f").ok());
  const auto check = [](const std::string& text) {
    const auto json = ParseJson(text, "f");
    if (json.ok()) return;
    int line = 0, column = 0;
    const std::string& message = json.status().message();
    ASSERT_EQ(std::sscanf(message.c_str(), "f: line %d, column %d: ", &line, &column), 2)
        << message;
    std::vector<std::string> lines(1);
    for (const char c : text) {
      if (c == '\n') {
        lines.emplace_back();
      } else {
        lines.back() += c;
      }
    }
    ASSERT_GE(line, 1);
    ASSERT_LE(line, static_cast<int>(lines.size())) << message;
    ASSERT_GE(column, 1) << message;
    ASSERT_LE(column, static_cast<int>(lines[static_cast<size_t>(line - 1)].size()) + 1) << message;
    ASSERT_EQ(message.find('\n'), std::string::npos) << message;
  };
  for (size_t at = 0; at < whole.size(); ++at) {
    check(whole.substr(0, at));
    for (int byte = 0; byte < 256; ++byte) {
      std::string text = whole;
      text[at] = static_cast<char>(byte);
      check(text);
      check(whole.substr(0, at) + static_cast<char>(byte) + whole.substr(at));
    }
  }
}

TEST(JsonTest, MessagesStayShort) {
  const auto json = ParseJson("[\"" + std::string(1'000'000, 'x'), "f");
  ASSERT_FALSE(json.ok());
  EXPECT_LT(json.status().message().size(), 400u);
  EXPECT_NE(json.status().message().find("line 1, column 1000003: "), std::string::npos);
  Json object;
  object["k"] = std::string(1'000'000, 'x') + "\xff";
  EXPECT_LT(GetInt(object, "k", "f").status().message().size(), 400u);
}

TEST(JsonTest, ManyKeysAndManyValues) {
  // Looking through all earlier keys for each one, this would not end before the test's limit.
  std::string text = "{";
  for (int i = 0; i < 300'000; ++i)
    text += "\"key" + std::to_string(i) + "\":" + std::to_string(i) + ",";
  text += "\"last\":[]}";
  const Json json = ValueOrThrow(ParseJson(text, "f"));
  EXPECT_EQ(json.size(), 300'001u);
  EXPECT_EQ(json.back(), Json::array());
}

TEST(JsonTest, BoundsSize) {
  EXPECT_TRUE(ParseJson("[1]", "f", {.max_bytes = 3}).ok());
  EXPECT_EQ(ParseJson("[12]", "f", {.max_bytes = 3}).status().message(),
            "f: 4 bytes of JSON, at most 3 are read");
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
