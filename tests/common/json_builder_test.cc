#include "common/json_builder.h"

#include <gtest/gtest.h>

#include <cmath>
#include <string>

namespace keel {
namespace {

// What transformers writes for a tokenizer without a limit: int(1e30).
constexpr const char* kNoLimit = "1000000000000000019884624838656";

TEST(JsonBuilderTest, WideIntegersAreDoublesWhereTheyAreTaken) {
  const std::string text =
      std::string("[") + kNoLimit + ", -18446744073709551616, 18446744073709551615, 7]";
  const Json json = ValueOrThrow(BuildJson(text, "f", {}, JsonNumbers::kPython));
  EXPECT_EQ(json[0].get<double>(), 1e30);
  EXPECT_EQ(json[1].get<double>(), -18446744073709551616.0);
  // What fits is an integer all the same.
  EXPECT_TRUE(json[2].is_number_unsigned());
  EXPECT_TRUE(json[3].is_number_integer());
  EXPECT_FALSE(BuildJson(text, "f", {}, JsonNumbers::kStandard).ok());
  EXPECT_FALSE(ParseJson(text, "f").ok());
}

TEST(JsonBuilderTest, WhatIsNoDoubleEitherIsRefused) {
  const std::string text = "[1" + std::string(400, '0') + "]";
  const Status status = BuildJson(text, "f", {}, JsonNumbers::kPython).status();
  EXPECT_EQ(status.code(), StatusCode::kInvalidData);
  EXPECT_EQ(status.message().find("f: line 1, column"), 0u) << status.message();
}

// What Python's json writes for a float that is none.
TEST(JsonBuilderTest, WhatIsNotFiniteIsThereWhereItIsTaken) {
  const std::string text =
      R"({"a": NaN, "b": [Infinity, -Infinity, -1], "NaN": "a NaN, \"Infinity", "c":-Infinity})";
  const Json json = ValueOrThrow(ParsePythonJson(text, "f"));
  EXPECT_TRUE(std::isnan(json["a"].get<double>()));
  EXPECT_EQ(json["b"], (Json{INFINITY, -INFINITY, -1}));
  EXPECT_EQ(json["NaN"], "a NaN, \"Infinity");
  EXPECT_EQ(json["c"], -INFINITY);
  EXPECT_FALSE(ParseJson(text, "f").ok());
  for (const char* wrong : {"{NaN: 1}", "[NaNa]", "[-NaN]", "[Infinit]", "[nan]", "[1NaN]"})
    EXPECT_FALSE(ParsePythonJson(wrong, "f").ok()) << wrong;
  EXPECT_EQ(ParsePythonJson("[NaN,\n x]", "f").status().message().find("f: line 2, column 2"), 0u);
}

TEST(JsonBuilderTest, AMemberWithANumberThatIsNoneIsSetApart) {
  const std::string big = "1" + std::string(30, '0');
  const Json row =
      ValueOrThrow(ParseRow(R"({"a": 1, "b": NaN, "c": [{"x": [1, Infinity]}, 2], "d": {"n": )" +
                                big + R"(, "m": -Infinity}, "e": "NaN", "f": 2.5})",
                            "rows.jsonl:3"));
  EXPECT_EQ(row.size(), 6u);
  EXPECT_EQ(row["a"], 1);
  EXPECT_EQ(row["e"], "NaN");
  EXPECT_EQ(row["f"], 2.5);
  EXPECT_EQ(WhySetApart(row["b"]), "rows.jsonl:3: line 1, column 17: no number of JSON: nan");
  EXPECT_EQ(WhySetApart(row["c"]), "rows.jsonl:3: line 1, column 43: no number of JSON: inf");
  EXPECT_EQ(WhySetApart(row["d"]).find("rows.jsonl:3: line 1, column 93: integer out of range: 10"),
            0u)
      << WhySetApart(row["d"]);
  EXPECT_EQ(WhySetApart(row["a"]), "");
  EXPECT_EQ(DumpRow(row), R"({"a":1,"b":NaN,"c":[{"x": [1, Infinity]}, 2],"d":{"n": )" + big +
                              R"(, "m": -Infinity},"e":"NaN","f":2.5})");
  // As it stood is as it is read the next time.
  for (const std::string& text :
       {R"({"a":-Infinity,"b":[NaN],"c":)" + big + "}", R"({"":NaN,"\":\"":{"\"":)" + big + "}}",
        std::string(R"({"a":[[],[{"b":NaN}],{}],"c":[1,2]})"), R"({"a":{"b":1},"c":)" + big + "}"})
    EXPECT_EQ(DumpRow(ValueOrThrow(ParseRow(text, "f"))), text);
  EXPECT_EQ(DumpRow(ValueOrThrow(ParseRow("{\"a\" :\t" + big + "\n, \"b\":NaN }", "f"))),
            "{\"a\":" + big + ",\"b\":NaN}");
  EXPECT_EQ(DumpRow({{"x", {1, NAN, -INFINITY, {{"y", INFINITY}}}}, {"z", "\xff"}}),
            "{\"x\":[1,NaN,-Infinity,{\"y\":Infinity}],\"z\":\"\xef\xbf\xbd\"}");
  // The other faults are what they are, and there has to be a member.
  for (const char* wrong : {R"({"a": NaN, "b": [1,}])", "[NaN]", "NaN", "1e400",
                            R"({"a": 1e400, "a": 2})", R"({"a": nan})", R"({NaN: 1})"})
    EXPECT_FALSE(ParseRow(wrong, "f").ok()) << wrong;
}

}  // namespace
}  // namespace keel
