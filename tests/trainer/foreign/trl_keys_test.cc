// The tables answer each argument of TRL 1.16's commands (trl_keys.txt, which record_keys.py wrote)
// once, and what they take is Keel's.

#include "trainer/foreign/trl_keys.h"

#include <gtest/gtest.h>

#include <set>

#include "tests/trainer/foreign/foreign_fixture.h"

namespace keel::trainer::foreign {
namespace {

TEST(TrlKeys, EachArgumentHasOneAnswer) {
  const std::vector<std::string> lines = RecordedLines("trl_keys.txt");
  ASSERT_GT(lines.size(), 500u);
  for (const auto& [method, name] : kEnumNames<TrlMethod>) {
    const std::vector<Row> rows = TrlRows(method);
    const KeyTable table(rows);
    int count = 0;
    for (const std::string& line : lines) {
      if (!line.starts_with(std::string(name) + " ")) continue;
      const std::string key = line.substr(name.size() + 1);
      EXPECT_EQ(table.Answers(key), 1) << line;
      ++count;
    }
    EXPECT_GT(count, 100) << name;
  }
}

TEST(TrlKeys, WhatIsTakenIsAKeyOfKeels) {
  Config config;
  std::set<std::string> here;
  const options::Schema schema = MakeSchema(config);
  for (const options::Option& option : schema.options()) here.insert(option.path);
  for (const auto& [method, name] : kEnumNames<TrlMethod>) {
    for (const Row& row : TrlRows(method)) {
      EXPECT_NE(row.answer, Answer::kTaken) << row.keys;  // no name is the same
      if (row.answer == Answer::kRenamed) {
        EXPECT_TRUE(here.contains(std::string(row.target))) << row.target;
      }
      EXPECT_EQ(row.why.empty(), row.answer == Answer::kRenamed) << row.keys;
    }
  }
}

}  // namespace
}  // namespace keel::trainer::foreign
