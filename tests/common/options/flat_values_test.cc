#include "common/options/flat_values.h"

#include <gtest/gtest.h>

namespace keel::options {
namespace {

FlatValues Values(const std::string& text) { return ValueOrThrow(Flatten({"run.yaml", text})); }

TEST(FlatValuesTest, EveryLeafHasItsPath) {
  const FlatValues values = Values(
      "trainer:\n  seed: 3\n  logger: [console, jsonl]\n  resume_from_path: null\n"
      "actor_rollout_ref:\n  model:\n    config: {hidden_size: 64, rope: {factor: 2.0}}\n"
      "    overrides: {}\n");
  const FlatValues expected = {{"trainer.seed", "3"},
                               {"trainer.logger", "[console, jsonl]"},
                               {"trainer.resume_from_path", "null"},
                               {"actor_rollout_ref.model.config.hidden_size", "64"},
                               {"actor_rollout_ref.model.config.rope.factor", "2.0"},
                               {"actor_rollout_ref.model.overrides", "{}"}};
  EXPECT_EQ(values, expected);
}

TEST(FlatValuesTest, ChangesAreNamedOnce) {
  const auto changes =
      Changes(Values("a: {b: 1e-3, c: 4, gone: x}"), Values("a: {b: 0.001, c: 8, fresh: [1, 2]}"));
  const std::vector<ValueChange> expected = {
      {"a.c", "4", "8"}, {"a.fresh", std::nullopt, "[1, 2]"}, {"a.gone", "x", std::nullopt}};
  EXPECT_EQ(changes, expected);
}

TEST(FlatValuesTest, TextsThatLookAlikeDiffer) {
  EXPECT_EQ(Changes({{"a", "1"}}, {{"a", "1x"}}).size(), 1u);
  EXPECT_EQ(Changes({{"a", "nan"}}, {{"a", "nan"}}).size(), 0u);
  EXPECT_EQ(Changes({{"a", "1"}}, {{"a", "1.0"}}).size(), 0u);
}

TEST(FlatValuesTest, OneTextIsNotSeveral) {
  EXPECT_EQ(Changes(Values("a: [\"b, c\"]"), Values("a: [b, c]")).size(), 1u);
  EXPECT_EQ(Changes(Values("a: [\"b\"]"), Values("a: [b]")).size(), 0u);
  EXPECT_EQ(Changes(Values("a: \"null\""), Values("a: null")).size(), 1u);
  EXPECT_EQ(Changes(Values("a: \"\""), Values("a: null")).size(), 1u);
  EXPECT_EQ(Values("a: [\"b, c\", /d/e]").at("a"), "[\"b, c\", /d/e]");
}

TEST(FlatValuesTest, WhatIsNoDocumentIsRefused) {
  const auto flat = Flatten({"saved config.yaml", "a: [1, 2"});
  ASSERT_FALSE(flat.ok());
  EXPECT_EQ(flat.status().code(), StatusCode::kConfig);
  EXPECT_NE(flat.status().message().find("saved config.yaml"), std::string::npos);
}

}  // namespace
}  // namespace keel::options
