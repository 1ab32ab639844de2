#include <gmock/gmock.h>

#include <cmath>
#include <limits>
#include <random>
#include <string>
#include <vector>

#include "common/options/schema.h"
#include "common/text.h"

namespace keel::options {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;
using ::testing::Not;

// A table with one field of each kind.
struct Fields {
  bool flag = false;
  int64_t count = 3;
  double rate = 0.5;
  std::string name = "a";
  std::optional<int64_t> limit;
  std::optional<double> maybe;
  std::optional<std::string> path;
  std::vector<std::string> words = {"x"};
  std::vector<double> numbers = {1, 2};
  std::vector<int64_t> steps = {3};
  Json map = Json::object();
  int64_t seed = 0, share = 0;
  Schema schema;

  Fields() {
    schema.Add("a.flag", flag, "A flag.");
    schema.Add("a.count", count, "A count.");
    schema.Add("a.rate", rate, "A rate.");
    schema.Add("a.name", name, "A name.");
    schema.Add("a.b.limit", limit, "A limit.");
    schema.Add("a.b.maybe", maybe, "A number.");
    schema.Add("a.b.path", path, "A path.");
    schema.Add("words", words, "Words.");
    schema.Add("numbers", numbers, "Numbers.");
    schema.Add("steps", steps, "Steps.").Range(1);
    schema.Add("map", map, "Anything.");
    schema.Add("seed", seed, "A seed.");
    schema.Add("share", share, "Bytes.").Unit("bytes");
  }
  Fields(const Fields&) = delete;
  Fields& operator=(const Fields&) = delete;

  Status Load(const std::string& text, const std::vector<std::string>& overrides = {}) {
    return schema.Load({"f.yaml", text}, overrides);
  }
  // All values, exactly.
  std::string Values() const {
    Json all = Json::object();
    for (const Option& option : schema.options()) all[option.path] = option.get();
    return all.dump();
  }
};

std::string RandomText(std::mt19937_64& random) {
  static const std::vector<std::string> kPieces = {"a",
                                                   "Z",
                                                   "0",
                                                   "9",
                                                   "-",
                                                   ".",
                                                   "/",
                                                   "_",
                                                   " ",
                                                   ":",
                                                   ": ",
                                                   "#",
                                                   " #",
                                                   "\"",
                                                   "'",
                                                   "\\",
                                                   "\n",
                                                   "\t",
                                                   "{",
                                                   "}",
                                                   "[",
                                                   "]",
                                                   ",",
                                                   "&",
                                                   "*",
                                                   "!",
                                                   "%",
                                                   "@",
                                                   "`",
                                                   "|",
                                                   ">",
                                                   "?",
                                                   "~",
                                                   "=",
                                                   "\x01",
                                                   "\x7f",
                                                   "e",
                                                   "true",
                                                   "null",
                                                   "Yes",
                                                   "1e3",
                                                   "0x",
                                                   "010",
                                                   "--",
                                                   "\xc3\xa9",
                                                   "<<",
                                                   "\xf0\x9f\x98\x80",
                                                   "\r",
                                                   "\\n",
                                                   "\xe2\x82\xac",
                                                   "\x7f",
                                                   "\xc2\x9b",
                                                   "\x1b[31m",
                                                   "\xe2\x80\xae",
                                                   "\xe2\x81\xa6"};
  static const std::vector<std::string> kWords = {
      "",   "null", "Null", "NULL", "~",    "true", "True", "no",  "Off", "y", "N", "1",
      "-1", "1.5",  "1e3",  ".inf", ".nan", "0o7",  "---",  "...", "-",   "?", ":", "<<"};
  if (random() % 3 == 0) return kWords[random() % kWords.size()];
  std::string text;
  for (uint64_t i = random() % 6; i > 0; --i) text += kPieces[random() % kPieces.size()];
  return text;
}

double RandomNumber(std::mt19937_64& random) {
  const double numbers[] = {0,
                            -0.0,
                            1,
                            -1,
                            0.1,
                            1e-5,
                            1e16,
                            1e17,
                            1e300,
                            std::numeric_limits<double>::denorm_min(),
                            3e-4,
                            1e15,
                            -2.5,
                            123456789012345678.0,
                            std::numeric_limits<double>::max()};
  return random() % 2 == 0
             ? numbers[random() % std::size(numbers)]
             : std::ldexp(static_cast<double>(random()), static_cast<int>(random() % 100) - 80);
}

Json RandomJson(std::mt19937_64& random, int depth) {
  switch (random() % (depth > 0 ? 8 : 6)) {
    case 0:
      return nullptr;
    case 1:
      return random() % 2 == 0;
    case 2:
      return static_cast<int64_t>(random());
    case 3:
      return RandomNumber(random);
    case 6: {
      Json list = Json::array();
      for (uint64_t i = random() % 3; i > 0; --i) list.push_back(RandomJson(random, depth - 1));
      return list;
    }
    case 7: {
      Json map = Json::object();
      for (uint64_t i = random() % 3; i > 0; --i)
        map[RandomText(random)] = RandomJson(random, depth - 1);
      return map;
    }
    default:
      return RandomText(random);
  }
}

TEST(Schema, ADumpLoadsBackToTheSameValues) {
  std::mt19937_64 random(1);
  for (int round = 0; round < 3000; ++round) {
    Fields from;
    from.flag = random() % 2 == 0;
    from.count = static_cast<int32_t>(random());
    from.seed = static_cast<int64_t>(random());
    // What has no bound of its own is one of fp32.
    constexpr double kLargest = std::numeric_limits<float>::max();
    from.rate = std::min(RandomNumber(random), kLargest);
    from.name = RandomText(random);
    if (random() % 2 == 0) from.limit = std::numeric_limits<int64_t>::min();
    if (random() % 2 == 0) from.maybe = std::min(RandomNumber(random), kLargest);
    if (random() % 2 == 0) from.path = RandomText(random);
    from.words.clear();
    for (uint64_t i = random() % 4; i > 0; --i) from.words.push_back(RandomText(random));
    from.numbers = {std::min(RandomNumber(random), kLargest)};
    from.steps = {static_cast<int64_t>((random() >> 1) | 1), 1};
    for (uint64_t i = random() % 4; i > 0; --i)
      from.map[RandomText(random)] = RandomJson(random, 2);
    for (const bool origins : {false, true}) {
      Fields to;
      const std::string text = from.schema.Dump(origins);
      const Status status = to.Load(text);
      ASSERT_TRUE(status.ok()) << status.message() << "\n" << text;
      ASSERT_EQ(to.Values(), from.Values()) << text;
      // A terminal shows it and does nothing.
      std::string shown = text;
      std::erase(shown, '\n');
      ASSERT_EQ(Printable(shown, std::string_view::npos), shown);
    }
  }
}

TEST(Schema, APathIsNoKey) {
  Fields fields;
  const Status status = fields.Load("a:\n  count: 1\na.count: 2\nmap: {\"x.y\": 1}\n");
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  EXPECT_THAT(status.message(),
              AllOf(HasSubstr("f.yaml:3:1: error: a.count: unknown key"),
                    HasSubstr("write the part after \"a.\""), Not(HasSubstr("x.y"))));
  EXPECT_TRUE(fields.Load("map: {\"x.y\": 1}\n", {"a.count=4"}).ok());
  EXPECT_EQ(fields.count, 4);
  EXPECT_EQ(fields.map["x.y"], 1);
  // As Hydra adds a key, and sets one whether it is there or not.
  for (const char* spelling : {"+a.count=5", "++a.count=5"})
    EXPECT_TRUE(fields.Load("", {spelling}).ok()) << spelling;
  EXPECT_FALSE(fields.Load("", {"+++a.count=5"}).ok());
  EXPECT_THAT(fields.Load("", {"a.count=9223372036854775808"}).message(),
              HasSubstr("integers are at most 9223372036854775807"));
}

TEST(Schema, WhatIsNotUtf8IsRefused) {
  Fields fields;
  const Status status = fields.Load("a:\n  name: caf\xe9\n");
  EXPECT_EQ(status.code(), StatusCode::kConfig);
  EXPECT_THAT(status.message(), AllOf(HasSubstr("f.yaml:2:12: error: byte \\xe9 is no UTF-8 text"),
                                      HasSubstr("name: caf\\xe9\n")));
  EXPECT_THAT(fields.Load("", {"a.name=\xff"}).message(), HasSubstr("byte \\xff"));
  EXPECT_TRUE(fields.Load("a:\n  name: caf\xc3\xa9\n").ok());
  EXPECT_EQ(fields.name, "caf\xc3\xa9");
}

// The library takes the end of the text for that of a quote, and with it the keys between.
TEST(Yaml, AQuoteThatDoesNotEndIsRefused) {
  for (const std::string open : {"\"x", "'x", "'it''s", "\"a\\\"", "[p, 'q]"}) {
    const std::string text = "a:\n  name: " + open + "\n  count: 4\n";
    const Status status = Fields().Load(text);
    EXPECT_THAT(status.message(), HasSubstr("the quote that begins here does not end")) << text;
    EXPECT_THAT(status.message(), HasSubstr("f.yaml:2:")) << text;
    EXPECT_THAT(Fields().Load("\xEF\xBB\xBF" + text).message(), HasSubstr("does not end"));
  }
  for (const std::string whole :
       {"\"x\"", "'x'", "'it''s'", "\"a\\\"b\"", "\"two\n    lines\"", "\"\u00fc\"", "''"}) {
    EXPECT_TRUE(Fields().Load("# \u00fc 'one\na:\n  name: " + whole + "\n  count: 4\n").ok())
        << whole;
  }
}

TEST(Yaml, WhatIsWronglyIndentedSaysWhatToDo) {
  EXPECT_THAT(Fields().Load("a:\n\tcount: 4\n").message(), HasSubstr("a tab: write spaces"));
  EXPECT_THAT(Fields().Load("a:\n  count: 4\n   rate: 1\n").message(),
              HasSubstr("indent it as the keys beside it"));
  EXPECT_THAT(Fields().Load("words: [p\na: {}\n").message(), HasSubstr("a bracket above it"));
}

TEST(Schema, DamagedTextIsRefusedOrTaken) {
  const std::string whole =
      "a:\n  flag: true\n  count: 3\n  rate: 0.5\n  name: \"x y\"\n  b: {limit: null, path: ~}\n"
      "words: [p, 'q']\nnumbers: [1, 2.5]\nmap: {k: [1, {l: m}]}\n";
  ASSERT_TRUE(Fields().Load(whole).ok());
  const auto check = [](const std::string& text) {
    Fields fields;
    const Status status = fields.Load(text);
    if (!status.ok()) {
      EXPECT_EQ(status.code(), StatusCode::kConfig);
      EXPECT_THAT(status.message(), HasSubstr("f.yaml"));
      return;
    }
    Fields again;
    ASSERT_TRUE(again.Load(fields.schema.Dump(true)).ok()) << text;
    EXPECT_EQ(again.Values(), fields.Values()) << text;
  };
  std::mt19937_64 random(2);
  for (size_t at = 0; at < whole.size(); ++at) {
    check(whole.substr(0, at));
    for (int round = 0; round < 20; ++round) {
      std::string text = whole;
      text[at] = static_cast<char>(random());
      check(text);
      text.insert(random() % text.size(), 1, static_cast<char>(random()));
      check(text);
    }
  }
}

enum class Shade { kLight, kDark };
constexpr auto NamesOf(Shade) {
  return EnumNames<Shade>({{Shade::kLight, "light"}, {Shade::kDark, "dark"}});
}

// To whoever writes and reads a configuration an enum is a string of which the choices are known.
TEST(Schema, AnEnumIsAStringWithChoices) {
  Shade one = Shade::kDark;
  std::optional<Shade> maybe;
  std::vector<Shade> many = {Shade::kLight, Shade::kDark};
  std::string text = "dark";
  std::optional<std::string> maybe_text;
  std::vector<std::string> texts = {"light", "dark"};
  Schema enums, strings;
  enums.Add("a.one", one, "A.");
  enums.Add("a.maybe", maybe, "B.");
  enums.Add("a.many", many, "C.");
  strings.Add("a.one", text, "A.").OneOf({"light", "dark"});
  strings.Add("a.maybe", maybe_text, "B.").OneOf({"light", "dark"});
  strings.Add("a.many", texts, "C.").OneOf({"light", "dark"});
  EXPECT_EQ(enums.Markdown(), strings.Markdown());
  EXPECT_EQ(enums.JsonSchema(), strings.JsonSchema());
  const Json entries = enums.JsonSchema()["properties"]["a"]["properties"];
  EXPECT_EQ(entries["one"]["enum"], Json::array({"light", "dark"}));
  EXPECT_EQ(entries["maybe"]["enum"], Json::array({"light", "dark", nullptr}));
  for (const std::string document :
       {"{}", "{one: light, maybe: dark, many: []}", "{one: 'light'}", "{maybe: null}",
        "{many: [dark]}", "{one: drak}", "{one: null}", "{one: [light]}", "{maybe: grey}",
        "{many: dark}", "{many: [dark, grey]}", "{one: None, maybe: None, many: None}"}) {
    const Status found = enums.Load({"f.yaml", "a: " + document}, {"~a.maybe"});
    EXPECT_EQ(found.message(), strings.Load({"f.yaml", "a: " + document}, {"~a.maybe"}).message());
    EXPECT_EQ(enums.Dump(true), strings.Dump(true)) << document;
  }
  ASSERT_TRUE(enums.Load({"f.yaml", "a: {one: dark, maybe: light, many: [dark]}"}, {}).ok());
  EXPECT_EQ(one, Shade::kDark);
  EXPECT_EQ(maybe, Shade::kLight);
  EXPECT_EQ(many, std::vector<Shade>{Shade::kDark});
  EXPECT_THAT(enums.Load({"f.yaml", "a: {one: drak}"}, {}).message(),
              AllOf(HasSubstr("a.one: expected one of light, dark, got \"drak\""),
                    HasSubstr("did you mean dark?")));
}

TEST(Schema, AKeyWhoseSectionWasLeftOutIsSuggestedWhole) {
  std::string path, own, name;
  Schema schema;
  schema.Add("model.path", path, "A.");
  schema.Add("reward.function.path", own, "B.");
  schema.Add("reward.function.name", name, "C.");
  EXPECT_THAT(
      schema.Load({"f.yaml", "function: {path: a.py}"}, {}).message(),
      AllOf(HasSubstr("function: unknown key"), HasSubstr("did you mean reward.function?")));
  EXPECT_THAT(schema.Load({"f.yaml", "{}"}, {"function.path=a.py"}).message(),
              HasSubstr("did you mean reward.function.path?"));
}

// A key that became a list: what was written for it still says the same.
TEST(Schema, AListOrOneOfItsItems) {
  std::vector<Shade> shades = {Shade::kLight};
  Schema schema;
  schema.Add("shades", shades, "Shades.").OrOne();
  EXPECT_EQ(schema.Dump(false), "shades: light\n");
  ASSERT_TRUE(schema.Load({"f.yaml", "shades: dark"}, {}).ok());
  EXPECT_EQ(shades, std::vector<Shade>{Shade::kDark});
  ASSERT_TRUE(schema.Load({"f.yaml", "shades: [dark, light]"}, {}).ok());
  EXPECT_EQ(shades, (std::vector<Shade>{Shade::kDark, Shade::kLight}));
  EXPECT_EQ(schema.Dump(false), "shades: [dark, light]\n");
  ASSERT_TRUE(schema.Load({"f.yaml", schema.Dump(false)}, {"shades=dark"}).ok());
  EXPECT_EQ(schema.Dump(false), "shades: dark\n");
  ASSERT_TRUE(schema.Load({"f.yaml", "{}"}, {"~shades"}).ok());
  EXPECT_EQ(shades, std::vector<Shade>{Shade::kLight});
  ASSERT_TRUE(schema.Load({"f.yaml", "shades: []"}, {}).ok());
  EXPECT_TRUE(shades.empty());
  for (const char* wrong : {"shades: drak", "shades: [drak]"}) {
    EXPECT_THAT(schema.Load({"f.yaml", wrong}, {}).message(),
                HasSubstr("shades: expected one of light, dark, got \"drak\""));
  }
  EXPECT_THAT(schema.Load({"f.yaml", "shades: {a: b}"}, {}).message(),
              HasSubstr("expected a string or a list of strings"));
  EXPECT_THAT(schema.Markdown(),
              HasSubstr("a string or a list of strings of light, dark | `light`"));
  const Json entry = schema.JsonSchema()["properties"]["shades"];
  EXPECT_EQ(entry["default"], "light");
  EXPECT_EQ(entry["anyOf"][0]["enum"], Json::array({"light", "dark"}));
  EXPECT_EQ(entry["anyOf"][1]["items"]["enum"], Json::array({"light", "dark"}));
}

TEST(Yaml, BoundsDepthAndSize) {
  for (const char* open : {"[", "{a: ", "- "}) {
    std::string text;
    for (int i = 0; i < 50'000; ++i) text += open;
    std::vector<Problem> problems;
    (void)ParseYaml({"f", text}, problems);
    ASSERT_FALSE(problems.empty()) << open;
  }
  std::vector<Problem> problems;
  (void)ParseYaml({"f", std::string((1 << 20) + 1, ' ')}, problems);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0].text, HasSubstr("1048577 bytes, at most 1048576 are read"));
}

TEST(Yaml, DuplicateKeysAmongMany) {
  // Looking through all earlier keys for each one, this would take 10^10 steps.
  std::string text;
  for (int i = 0; i < 90'000; ++i) text += "k" + std::to_string(i) + ": 1\n";
  text += "k77: 2\n";
  std::vector<Problem> problems;
  const YamlNode root = ParseYaml({"f", text}, problems);
  EXPECT_EQ(root.entries.size(), 90'000u);
  ASSERT_EQ(problems.size(), 1u);
  EXPECT_THAT(problems[0].text, HasSubstr("duplicate key \"k77\", first given at line 78"));
  EXPECT_EQ(problems[0].position.line, 90'001);
}

TEST(Schema, WhatHasNoBoundHasOneThatItsUseHolds) {
  Fields fields;
  EXPECT_TRUE(fields.Load("a: {count: 2147483647, rate: 3.4e38}\n").ok());
  EXPECT_THAT(fields.Load("a: {count: 2147483648}\n").message(),
              HasSubstr("a.count: expected at most 2147483647, got 2147483648"));
  EXPECT_THAT(fields.Load("a: {rate: 1e39}\n").message(),
              HasSubstr("a.rate: expected at most 3.4028234663852886e+38, got 1e39"));
  EXPECT_THAT(fields.Load("numbers: [1, 1e39]\n").message(),
              HasSubstr("numbers: expected at most 3.4028234663852886e+38, got 1e+39"));
  EXPECT_TRUE(fields.Load("seed: 9223372036854775807\nshare: 9223372036854775807\n").ok());
  // And the schema for editors says so.
  const Json entries = fields.schema.JsonSchema()["properties"];
  EXPECT_EQ(entries["a"]["properties"]["count"]["maximum"], 2147483647);
  EXPECT_EQ(entries["numbers"]["items"]["maximum"], std::numeric_limits<float>::max());
  EXPECT_FALSE(entries["numbers"].contains("maximum")) << "it is for numbers, not for lists";
}

TEST(Schema, AListOfIntegersHoldsNothingElse) {
  Fields fields;
  ThrowIfError(fields.Load("steps: [9007199254740993, 2]\n", {}));
  EXPECT_EQ(fields.steps, (std::vector<int64_t>{9007199254740993, 2}));  // no double has the first
  ThrowIfError(fields.Load("steps: [7]\n", {"steps=[]"}));
  EXPECT_TRUE(fields.steps.empty());
  for (const char* const text : {"7", "[1.5]", "[a]", "['7']", "[[7]]", "null"}) {
    EXPECT_THAT(fields.Load(std::string("steps: ") + text + "\n").message(),
                HasSubstr("a list of integers"))
        << text;
  }
  EXPECT_FALSE(fields.Load("steps: [0]\n").ok()) << "below its range";
  EXPECT_EQ(fields.schema.JsonSchema()["properties"]["steps"]["items"]["type"], "integer");
}

}  // namespace
}  // namespace keel::options
