// The table answers each key of verl 0.9.1's generated trainer files (verl_keys.txt, which
// record_keys.py wrote) once, and what it takes is Keel's.

#include "trainer/foreign/verl_keys.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <set>

#include "tests/trainer/foreign/foreign_fixture.h"

namespace keel::trainer::foreign {
namespace {

// Keys of later builds: rows begin to hold when the schema has them.
const std::set<std::string>& MayBeMissing() {
  static const std::set<std::string> keys = {
      "critic.optim.lr_decay_steps",
      "critic.optim.lr_wsd_decay_steps",
  };
  return keys;
}

TEST(VerlKeys, EachKeyOfVerlHasOneAnswer) {
  const KeyTable table(VerlRows());
  const std::vector<std::string> keys = RecordedLines("verl_keys.txt");
  ASSERT_GT(keys.size(), 1300u);
  for (const std::string& key : keys) EXPECT_EQ(table.Answers(key), 1) << key;
}

TEST(VerlKeys, WhatIsTakenIsAKeyOfKeels) {
  Config config;
  std::set<std::string> here;
  const options::Schema schema = MakeSchema(config);
  for (const options::Option& option : schema.options()) here.insert(option.path);
  const KeyTable table(VerlRows());
  int taken = 0;
  for (const auto& [key, row] : table.keys()) {
    if (row->answer != Answer::kTaken && row->answer != Answer::kRenamed) continue;
    const std::string target = row->answer == Answer::kTaken ? key : std::string(row->target);
    EXPECT_TRUE(here.contains(target) || MayBeMissing().contains(target)) << key << " " << target;
    ++taken;
  }
  EXPECT_GT(taken, 130);
}

TEST(VerlKeys, EachRowSaysWhyNot) {
  for (const Row& row : VerlRows()) {
    const bool not_taken = row.answer == Answer::kNotNeeded || row.answer == Answer::kNotSupported;
    EXPECT_EQ(row.why.empty(), !not_taken) << row.keys;
    EXPECT_EQ(row.target.empty(), row.answer != Answer::kRenamed) << row.keys;
    if (row.answer == Answer::kNotSupported) {
      EXPECT_FALSE(row.preset.empty()) << row.keys;
    }
  }
}

// A key of verl's that Keel has too must not be answered by a pattern that drops it.
TEST(VerlKeys, NoKeyThatBothHaveIsDropped) {
  Config config;
  std::set<std::string> here;
  const options::Schema schema = MakeSchema(config);
  for (const options::Option& option : schema.options()) here.insert(option.path);
  const std::map<std::string, std::string> apart = {
      {"data.tokenizer", "there a path"},
      {"data.max_length", "of SFT"},
      {"trainer.critic_warmup", "there one more"},
  };
  const KeyTable table(VerlRows());
  for (const std::string& key : RecordedLines("verl_keys.txt")) {
    if (!here.contains(key) || apart.contains(key)) continue;
    EXPECT_EQ(table.Find(key).row->answer, Answer::kTaken) << key;
  }
}

}  // namespace
}  // namespace keel::trainer::foreign
