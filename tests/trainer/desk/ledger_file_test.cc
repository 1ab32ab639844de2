#include "trainer/desk/ledger_file.h"

#include <gtest/gtest.h>

#include <random>
#include <set>
#include <string>
#include <utility>

#include "common/hash.h"

namespace keel::trainer::desk {
namespace {

Ledger SomeLedger() {
  Ledger ledger;
  ledger.frontier = 24;
  ledger.taken = {26, 30};
  ledger.steps = 3;
  ledger.versions = {{3, 2}, {4, 3}};
  ledger.samples[{24, -1}].partial = {
      {5, 6, 7}, {-0.5F, 0.0F, -2.0F}, {{0, 3}, {2, 4}}, {{1, 2}}, "what a tool knows"};
  ledger.samples[{24, -1}].spent_ms = 1500;
  ledger.samples[{24, 0}].partial = {};
  Finished done;
  done.response.position = 25;
  done.response.sample = 1;
  done.response.tokens = {8, 9, 10};
  done.response.log_probs = {-0.25F, 0.0F, -0.75F};
  done.response.given = {{1, 2}};
  done.response.tools = {1, 0, 0, 1, {0.5}};
  done.response.finish = "stop";
  done.response.score = 0.5;
  done.response.extra = {{"acc", 1.0}};
  done.response.text = "a text";
  done.response.answer = "4";
  done.spans = {{0, 4}};
  ledger.samples[{25, 1}].finished = done;
  return ledger;
}

TEST(LedgerFileTest, ComesBackAsItWas) {
  const std::string bytes = EncodeLedger(SomeLedger());
  const Ledger back = ValueOrThrow(DecodeLedger(bytes));
  EXPECT_EQ(back.frontier, 24);
  EXPECT_EQ(back.taken, (std::set<int64_t>{26, 30}));
  EXPECT_EQ(back.steps, 3);
  EXPECT_EQ(back.versions, SomeLedger().versions);
  ASSERT_EQ(back.samples.size(), 3u);
  EXPECT_EQ(back.samples.at({24, -1}).partial, SomeLedger().samples.at({24, -1}).partial);
  EXPECT_EQ(back.samples.at({24, -1}).spent_ms, 1500);
  const Finished& done = *back.samples.at({25, 1}).finished;
  EXPECT_EQ(done.response.tokens, (std::vector<int32_t>{8, 9, 10}));
  EXPECT_EQ(done.response.given, (std::vector<TokenRange>{{1, 2}}));
  EXPECT_EQ(done.response.tools, (turns::ToolUse{1, 0, 0, 1, {0.5}}));
  EXPECT_EQ(done.response.text, "a text");
  EXPECT_EQ(done.response.answer, "4");
  EXPECT_EQ(done.response.extra.at("acc"), 1.0);
  EXPECT_EQ(done.spans, (std::vector<VersionSpan>{{0, 4}}));
  EXPECT_EQ(EncodeLedger(back), bytes);
}

std::string Hex(const std::string& bytes) {
  std::string hex;
  for (const char c : bytes) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  return hex;
}

std::string Bytes(const std::string& hex) {
  std::string bytes;
  for (size_t i = 0; i < hex.size(); i += 2)
    bytes += static_cast<char>(std::stoi(hex.substr(i, 2), nullptr, 16));
  return bytes;
}

std::string FileOf(const std::string& version, const std::string& body) {
  std::string file = "KEELLEDG" + Bytes(version);
  const uint64_t sum = Hash64(body);
  file.append(reinterpret_cast<const char*>(&sum), sizeof sum);
  return file + body;
}

// Version 4, byte by byte: files that were written stay readable.
TEST(LedgerFileTest, TheFormatStaysAsItIs) {
  Ledger ledger;
  ledger.frontier = 2;
  ledger.taken = {3};
  ledger.steps = 1;
  ledger.versions = {{5, 1}};
  ledger.samples[{2, 0}].partial = {{258}, {-1.0F}, {{0, 5}}};
  ledger.samples[{2, 0}].partial.given = {{0, 1}};
  ledger.samples[{2, 0}].partial.tool_memory = "m";
  ledger.samples[{2, 0}].spent_ms = 1000;
  const std::string hex = Hex(EncodeLedger(ledger));
  EXPECT_EQ(hex.substr(0, 24), "4b45454c4c45444704000000");
  EXPECT_EQ(hex.substr(40),
            "0200000000000000"                                  // frontier
            "08000000000000000300000000000000"                  // taken
            "0100000000000000"                                  // steps
            "010000000000000005000000000000000100000000000000"  // one version
            "0100000000000000020000000000000000000000"          // one sample: position, number
            "00000000"                                          // partial
            "040000000000000002010000"                          // tokens
            "0400000000000000000080bf"                          // log-probabilities
            "100000000000000000000000000000000500000000000000"  // spans
            "100000000000000000000000000000000100000000000000"  // given
            "01000000000000006d"                                // tool memory
            "e803000000000000"                                  // milliseconds
  );
}

// Of a Keel that trained in order, and of one before, which did not bound the time of a response.
TEST(LedgerFileTest, VersionsTwoAndThreeAreRead) {
  const std::string two =
      "02000000000000000100000000000000"                  // frontier, steps
      "010000000000000005000000000000000100000000000000"  // one version
      "0100000000000000020000000000000000000000"          // one sample: position, number
      "00000000"                                          // partial
      "040000000000000002010000"                          // tokens
      "0400000000000000000080bf"                          // log-probabilities
      "100000000000000000000000000000000500000000000000"  // spans
      "100000000000000000000000000000000100000000000000"  // given
      "01000000000000006d";                               // tool memory
  const std::string three = two + "e803000000000000";     // milliseconds
  for (const auto& [version, body] : {std::pair("02000000", two), {"03000000", three}}) {
    const Ledger ledger = ValueOrThrow(DecodeLedger(FileOf(version, Bytes(body))));
    EXPECT_EQ(ledger.samples.at({2, 0}).partial,
              (Partial{{258}, {-1.0F}, {{0, 5}}, {{0, 1}}, "m"}));
    EXPECT_EQ(ledger.samples.at({2, 0}).spent_ms, body == three ? 1000 : 0);
    EXPECT_TRUE(ledger.taken.empty());
  }
}

TEST(LedgerFileTest, WhatIsTakenStandsOnceBehindTheFrontier) {
  for (const std::set<int64_t>& taken : {std::set<int64_t>{2}, std::set<int64_t>{1, 5}}) {
    Ledger ledger;
    ledger.frontier = 2;
    ledger.taken = taken;
    EXPECT_EQ(DecodeLedger(EncodeLedger(ledger)).status().code(), StatusCode::kInvalidData);
  }
}

// Of a Keel whose responses had a single turn.
TEST(LedgerFileTest, VersionOneIsRead) {
  const std::string body = Bytes(
      "02000000000000000100000000000000"                  // frontier, steps
      "010000000000000005000000000000000100000000000000"  // one version
      "0200000000000000020000000000000000000000"          // two samples: position, number
      "00000000"                                          // partial
      "040000000000000002010000"                          // tokens
      "0400000000000000000080bf"                          // log-probabilities
      "100000000000000000000000000000000500000000000000"  // spans
      // finished: the response, its text and answer, spans
      "02000000000000000100000001000000450000000000000001010000000000000002000000000000"
      "00010000000500000000000000000000000000004001000000010000000000000007000000000000"
      "bf0400000073746f7000000000110000000000000001010000000000000000000000000000001000"
      "00000000000000000000000000000500000000000000");
  const Ledger ledger = ValueOrThrow(DecodeLedger(FileOf("01000000", body)));
  EXPECT_EQ(ledger.samples.at({2, 0}).partial, (Partial{{258}, {-1.0F}, {{0, 5}}}));
  const Finished& done = *ledger.samples.at({2, 1}).finished;
  EXPECT_EQ(done.response.tokens, (std::vector<int32_t>{7}));
  EXPECT_EQ(done.response.finish, "stop");
  EXPECT_TRUE(done.response.given.empty());
  EXPECT_EQ(done.spans, (std::vector<VersionSpan>{{0, 5}}));
}

TEST(LedgerFileTest, DamageIsFound) {
  const std::string bytes = EncodeLedger(SomeLedger());
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(DecodeLedger(std::string_view(bytes).substr(0, size)).ok()) << size;
  EXPECT_FALSE(DecodeLedger(bytes + "x").ok());
  for (size_t i = 0; i < bytes.size(); ++i) {
    std::string damaged = bytes;
    damaged[i] = static_cast<char>(damaged[i] ^ 4);
    EXPECT_EQ(DecodeLedger(damaged).status().code(), StatusCode::kInvalidData) << i;
  }
}

}  // namespace
}  // namespace keel::trainer::desk
