#include "turns/python_text.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cstdlib>
#include <fstream>
#include <iterator>
#include <string>

#include "common/text.h"

namespace keel::turns {
namespace {

// What a whole text is read as; null where it is none, or has a rest.
Json ReadValueOf(std::string_view text) {
  const auto value = TakePythonValue(&text);
  return value && Trim(text).empty() ? Json{*value} : Json();
}

Json ReadCallOf(std::string_view text) {
  const auto call = TakePythonCall(&text);
  if (!call || !Trim(text).empty()) return nullptr;
  return {{"name", call->name}, {"arguments", call->arguments}};
}

// tests/oracles/make_python_calls.py: what Python's own parser reads of 400 random ones.
TEST(PythonTextTest, CallsAreReadAsByPython) {
  const char* const root = std::getenv("KEEL_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) +
                     "/tests/oracles/python_calls.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const Json cases = ValueOrThrow(ParseJson(text, "python_calls.json"));
  ASSERT_GE(cases.size(), 400U);
  for (const Json& one : cases) EXPECT_EQ(ReadCallOf(one[0].get<std::string>()), one[1]) << one[0];
}

TEST(PythonTextTest, JsonsWordsAreReadToo) {
  EXPECT_EQ(ReadValueOf("[true, false, null]"), Json::parse("[[true, false, null]]"));
  EXPECT_EQ(ReadValueOf(R"({"a": [1.5, "\ud83d\ude00", "\ud83d"]})"),
            Json::parse(R"([{"a": [1.5, "😀", "\ufffd"]}])"));
}

TEST(PythonTextTest, WhatFollowsIsLeft) {
  std::string_view text = " f(x=1)\ng(y='2') and";
  ASSERT_TRUE(TakePythonCall(&text));
  EXPECT_EQ(text, "\ng(y='2') and");
  const auto second = TakePythonCall(&text);
  ASSERT_TRUE(second);
  EXPECT_EQ(second->arguments, Json::parse(R"({"y": "2"})"));
  EXPECT_EQ(text, " and");
}

TEST(PythonTextTest, DepthHasALimit) {
  const auto nested = [](size_t depth) {
    return std::string(depth, '[') + std::string(depth, ']');
  };
  EXPECT_FALSE(ReadValueOf(nested(60)).is_null());
  EXPECT_TRUE(ReadValueOf(nested(70)).is_null());
  EXPECT_TRUE(ReadValueOf(std::string(1'000'000, '[')).is_null());
  EXPECT_TRUE(ReadValueOf("").is_null());
}

}  // namespace
}  // namespace keel::turns
