#include "trainer/foreign/given_values.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

namespace keel::trainer::foreign {
namespace {

using testing::HasSubstr;

constexpr Row kGivenRows[] = {
    Taken("run.steps", "30"),    NotNeeded("run.project", "a name", "verl_examples"),
    Taken("run.kwargs", "{}"),   Taken("other.lr", "${.base}"),
    Taken("other.base", "1e-6"),
};

Environment Variables() {
  return [](const std::string& name) -> std::optional<std::string> {
    return name == "SET" ? std::optional<std::string>("from outside") : std::nullopt;
  };
}

TEST(GivenValues, OmegaConfsInterpolationsAreResolved) {
  const KeyTable table(kGivenRows);
  GivenValues given(table, Variables());
  ASSERT_TRUE(given
                  .AddFile({"a.yaml",
                            "a:\n  b: 2\n  same: ${a.b}\n  near: ${.b}\n  up: ${..c}\n"
                            "  text: runs/${run.project}/x${a.b}\n  chosen: ${oc.select:a.b,7}\n"
                            "  missing: ${oc.select:a.none,7}\n  nothing: ${oc.select:a.none}\n"
                            "  null_stays: ${oc.select:a.null, 5}\n  'null': null\n"
                            "  env: ${oc.env:SET}\n  otherwise: ${oc.env:UNSET,[1, 2]}\n"
                            "  nested: ${oc.select:a.none,${oc.select:a.b,9}}\n"
                            "  list: ['${a.b}', x]\n  section: ${d}\n"
                            "  no: ${a.none}\n  circle: ${a.circle}\n  python: ${eval:1+1}\n"
                            "  open: 'x${a.b'\nc: true\nd:\n  e: 1\n"})
                  .ok());
  const auto value = [&](const std::string& key) {
    const auto resolved = given.Value(key);
    if (!resolved.ok()) return "!" + resolved.status().message();
    return resolved.value() ? resolved.value()->dump() : std::string("none");
  };
  EXPECT_EQ(value("a.same"), "2");
  EXPECT_EQ(value("a.near"), "2");
  EXPECT_EQ(value("a.up"), "true");
  EXPECT_EQ(value("a.text"), "\"runs/verl_examples/x2\"");
  EXPECT_EQ(value("a.chosen"), "2");
  EXPECT_EQ(value("a.missing"), "7");
  EXPECT_EQ(value("a.nothing"), "null");
  EXPECT_EQ(value("a.null_stays"), "null");
  EXPECT_EQ(value("a.env"), "\"from outside\"");
  EXPECT_EQ(value("a.otherwise"), "[1,2]");
  EXPECT_EQ(value("a.nested"), "2");
  EXPECT_EQ(value("a.list"), "[2,\"x\"]");
  EXPECT_EQ(value("a.section"), "{\"e\":1}");
  EXPECT_EQ(value("run.steps"), "30");
  EXPECT_EQ(value("other.lr"), "1e-06");
  EXPECT_EQ(value("nowhere"), "none");
  EXPECT_THAT(value("a.no"), HasSubstr("!${a.none}, a key that the file does not have"));
  EXPECT_THAT(value("a.circle"), HasSubstr("lead back"));
  EXPECT_THAT(value("a.python"), HasSubstr("OmegaConf"));
  EXPECT_THAT(value("a.open"), HasSubstr("do not close"));
}

TEST(GivenValues, WordsOfPythonAndOfYamlAreValues) {
  EXPECT_EQ(ValueOfText("True", false).value(), Json(true));
  EXPECT_EQ(ValueOfText("FALSE", false).value(), Json(false));
  EXPECT_EQ(ValueOfText("None", false).value(), Json(nullptr));
  EXPECT_EQ(ValueOfText("'None'", false).value(), Json("None"));
  EXPECT_EQ(ValueOfText("yes", true).value(), Json(true));
  EXPECT_EQ(ValueOfText("yes", false).value(), Json("yes"));
  EXPECT_EQ(ValueOfText("1e-6", false).value(), Json(1e-6));
  EXPECT_EQ(ValueOfText("[a, 1, null]", false).value(), Json::array({"a", 1, nullptr}));
}

TEST(GivenValues, ALaterValueTakesTheEarliersPlace) {
  const KeyTable table(kGivenRows);
  GivenValues given(table, Variables());
  given.Add({"x", 1, {}});
  given.Add({"y", 2, {}});
  given.Add({"x", 3, {}});
  given.Add({"y.z", 4, {}});
  given.Remove("y");
  ASSERT_EQ(given.all().size(), 1u);
  EXPECT_EQ(given.all()[0].value, Json(3));
  EXPECT_FALSE(given.Has("y.z"));
}

TEST(GivenValues, AKeyOfTheTableMayHoldAMap) {
  const KeyTable table(kGivenRows);
  GivenValues given(table, Variables());
  ASSERT_TRUE(given.AddFile({"a.yaml", "run:\n  kwargs:\n    deep: {x: 1}\n"}).ok());
  ASSERT_EQ(given.all().size(), 1u);
  EXPECT_EQ(given.all()[0].key, "run.kwargs");
}

TEST(GivenValues, WhatIsNoMapIsRefused) {
  const KeyTable table(kGivenRows);
  GivenValues given(table, Variables());
  EXPECT_THAT(given.AddFile({"a.yaml", "- x\n"}).message(), HasSubstr("expected a map"));
  EXPECT_THAT(given.AddFile({"a.yaml", "a: [1\n"}).message(), HasSubstr("a.yaml:"));
}

}  // namespace
}  // namespace keel::trainer::foreign
