#include "trainer/desk/ledger_file.h"

#include <gtest/gtest.h>

#include <random>
#include <string>

namespace keel::trainer::desk {
namespace {

Ledger SomeLedger() {
  Ledger ledger;
  ledger.frontier = 24;
  ledger.steps = 3;
  ledger.versions = {{3, 2}, {4, 3}};
  ledger.samples[{24, -1}].partial = {{5, 6, 7}, {-0.5F, -1.0F, -2.0F}, {{0, 3}, {2, 4}}};
  ledger.samples[{24, 0}].partial = {};
  Finished done;
  done.response.position = 25;
  done.response.sample = 1;
  done.response.tokens = {8, 9};
  done.response.log_probs = {-0.25F, -0.75F};
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
  EXPECT_EQ(back.steps, 3);
  EXPECT_EQ(back.versions, SomeLedger().versions);
  ASSERT_EQ(back.samples.size(), 3u);
  EXPECT_EQ(back.samples.at({24, -1}).partial, SomeLedger().samples.at({24, -1}).partial);
  const Finished& done = *back.samples.at({25, 1}).finished;
  EXPECT_EQ(done.response.tokens, (std::vector<int32_t>{8, 9}));
  EXPECT_EQ(done.response.text, "a text");
  EXPECT_EQ(done.response.answer, "4");
  EXPECT_EQ(done.response.extra.at("acc"), 1.0);
  EXPECT_EQ(done.spans, (std::vector<VersionSpan>{{0, 4}}));
  EXPECT_EQ(EncodeLedger(back), bytes);
}

// Version 1, byte by byte: files that were written stay readable.
TEST(LedgerFileTest, TheFormatStaysAsItIs) {
  Ledger ledger;
  ledger.frontier = 2;
  ledger.steps = 1;
  ledger.versions = {{5, 1}};
  ledger.samples[{2, 0}].partial = {{258}, {-1.0F}, {{0, 5}}};
  std::string hex;
  for (const char c : EncodeLedger(ledger)) {
    constexpr char kDigits[] = "0123456789abcdef";
    hex += kDigits[static_cast<unsigned char>(c) >> 4];
    hex += kDigits[static_cast<unsigned char>(c) & 15];
  }
  EXPECT_EQ(hex.substr(0, 24), "4b45454c4c45444701000000");
  EXPECT_EQ(hex.substr(40),
            "02000000000000000100000000000000"                  // frontier, steps
            "010000000000000005000000000000000100000000000000"  // one version
            "0100000000000000020000000000000000000000"          // one sample: position, number
            "00000000"                                          // partial
            "040000000000000002010000"                          // tokens
            "0400000000000000000080bf"                          // log-probabilities
            "100000000000000000000000000000000500000000000000"  // spans
  );
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
