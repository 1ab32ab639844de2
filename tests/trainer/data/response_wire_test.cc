// Responses through bytes and back; bytes that no rank wrote.

#include "trainer/data/response_wire.h"

#include <gtest/gtest.h>

#include <bit>
#include <cmath>
#include <limits>
#include <random>

namespace keel::trainer::rl {
namespace {

// With what JSON cannot carry: bytes that are no UTF-8, numbers that are not finite.
std::vector<Response> SomeResponses() {
  std::vector<Response> responses(3);
  responses[0].position = (int64_t{1} << 62) + 5;
  responses[0].sample = -1;
  responses[0].tokens = {0, 151'643, 7};
  responses[0].log_probs = {-0.0f, -std::numeric_limits<float>::infinity(), -1e-30f};
  responses[0].finish = "stop";
  responses[0].weight_version = 12;
  responses[0].score = 0.1;
  responses[0].extra = {{"acc", 1}, {"", std::nan("")}};
  responses[0].text = std::string("a\0\xFF\n", 4);
  responses[0].answer = "42";
  responses[1].finish = "error";
  responses[1].error = "the verifier said \xFE";
  responses[2].position = 3;
  responses[2].sample = 7;
  responses[2].tokens = {5};
  responses[2].finish = "length";
  responses[0].given = {{0, 1}, {2, 3}};
  responses[0].tools = {3, 2, 1, 1, {0.5, -1}};
  responses[2].tools = {1, 1, 0, 0, {}};
  return responses;
}

void ExpectSame(const Response& a, const Response& b) {
  EXPECT_EQ(a.position, b.position);
  EXPECT_EQ(a.sample, b.sample);
  EXPECT_EQ(a.tokens, b.tokens);
  ASSERT_EQ(a.log_probs.size(), b.log_probs.size());
  for (size_t i = 0; i < a.log_probs.size(); ++i)
    EXPECT_EQ(std::bit_cast<uint32_t>(a.log_probs[i]), std::bit_cast<uint32_t>(b.log_probs[i]));
  EXPECT_EQ(a.finish, b.finish);
  EXPECT_EQ(a.weight_version, b.weight_version);
  EXPECT_EQ(std::bit_cast<uint64_t>(a.score), std::bit_cast<uint64_t>(b.score));
  ASSERT_EQ(a.extra.size(), b.extra.size());
  for (const auto& [name, value] : a.extra)
    EXPECT_EQ(std::bit_cast<uint64_t>(value), std::bit_cast<uint64_t>(b.extra.at(name)));
  EXPECT_EQ(a.error, b.error);
  EXPECT_EQ(a.given, b.given);
  EXPECT_EQ(a.tools, b.tools);
}

TEST(ResponseWireTest, ResponsesArriveBitForBit) {
  const std::vector<Response> sent = SomeResponses();
  std::vector<Response> came = ValueOrThrow(DecodeResponses(EncodeResponses(sent)));
  ASSERT_EQ(came.size(), sent.size());
  for (size_t i = 0; i < sent.size(); ++i) {
    ExpectSame(sent[i], came[i]);
    EXPECT_EQ(came[i].text, "");
  }
  ASSERT_TRUE(DecodeTexts(EncodeTexts(sent), came).ok());
  for (size_t i = 0; i < sent.size(); ++i) {
    EXPECT_EQ(came[i].text, sent[i].text);
    EXPECT_EQ(came[i].answer, sent[i].answer);
  }
  EXPECT_TRUE(ValueOrThrow(DecodeResponses(EncodeResponses({}))).empty());
}

TEST(ResponseWireTest, ATokenAndItsLogProbabilityTakeEightBytes) {
  std::vector<Response> one(1);
  const size_t empty = EncodeResponses(one).size();
  one[0].prompt.assign(1000, 1);
  one[0].tokens.assign(1000, 1);
  one[0].log_probs.assign(1000, -0.5f);
  one[0].text.assign(4000, 'x');
  EXPECT_EQ(EncodeResponses(one).size(), empty + 8000);
  EXPECT_LE(empty, 64u);
}

// Whatever is decoded is what its bytes say, or refused: none of it is a guess.
void Try(const std::string& bytes) {
  const auto found = DecodeResponses(bytes);
  if (found.ok()) {
    EXPECT_EQ(EncodeResponses(*found), bytes);
  } else {
    EXPECT_EQ(found.status().code(), StatusCode::kInvalidData);
  }
}

TEST(ResponseWireTest, TornAndHostileBytesAreRefused) {
  const std::string whole = EncodeResponses(SomeResponses());
  const std::string texts = EncodeTexts(SomeResponses());
  for (size_t size = 0; size < whole.size(); ++size)
    EXPECT_FALSE(DecodeResponses(whole.substr(0, size)).ok()) << size;
  std::vector<Response> into(3);
  for (size_t size = 0; size < texts.size(); ++size)
    EXPECT_FALSE(DecodeTexts(texts.substr(0, size), into).ok()) << size;
  EXPECT_FALSE(DecodeResponses(whole + '\0').ok());
  EXPECT_FALSE(DecodeTexts(texts + '\0', into).ok());
  EXPECT_FALSE(DecodeTexts(texts, std::span(into).first(2)).ok());
  std::string other = whole;
  for (const char version : {char{0}, char{1}, char{3}}) {
    other[0] = version;
    EXPECT_FALSE(DecodeResponses(other).ok());
  }
  // A count of 2^32 - 1 in each place, and of all responses 2^64 - 1: refused for what is missing.
  for (size_t at = 1; at + 4 <= whole.size(); ++at) {
    std::string large = whole;
    large.replace(at, 4, "\xFF\xFF\xFF\xFF");
    Try(large);
  }
  Try(whole.substr(0, 1) + std::string(8, '\xFF') + whole.substr(9));
}

TEST(ResponseWireTest, RandomChangesAreRefusedOrSurvive) {
  const std::string whole = EncodeResponses(SomeResponses());
  std::mt19937 random(20'24);
  for (int round = 0; round < 20'000; ++round) {
    std::string bytes = whole;
    for (int change = 0; change < 1 + round % 3; ++change)
      bytes[random() % bytes.size()] = static_cast<char>(random());
    if (round % 4 == 0) bytes.resize(random() % bytes.size());
    Try(bytes);
  }
}

}  // namespace
}  // namespace keel::trainer::rl
