#include "model/tokenizer/pipeline/bpe.h"

#include <gtest/gtest.h>

#include <map>
#include <random>
#include <string>
#include <utility>
#include <vector>

namespace keel::model {
namespace {

using Ranks = std::map<std::pair<std::string, std::string>, size_t>;

// The definition: the two neighbours of the lowest rank, of those the leftmost, until none has one.
std::vector<std::string> Merged(std::vector<std::string> parts, const Ranks& ranks) {
  for (;;) {
    size_t best = std::string::npos;
    size_t at = 0;
    for (size_t i = 0; i + 1 < parts.size(); ++i) {
      const auto rank = ranks.find({parts[i], parts[i + 1]});
      if (rank != ranks.end() && rank->second < best) {
        best = rank->second;
        at = i;
      }
    }
    if (best == std::string::npos) return parts;
    parts[at] += parts[at + 1];
    parts.erase(parts.begin() + static_cast<std::ptrdiff_t>(at) + 1);
  }
}

// Letters of one to four bytes; the last is in no token, and is left out.
const std::vector<std::string> kSpellings = {"a", "b", "\u00e9", "\u4e2d", "\U0001f600", "z"};

TEST(Bpe, PiecesOfEveryLengthAreMergedAsTheDefinitionSays) {
  std::mt19937 random(11);  // NOLINT: the same pieces every time
  for (int round = 0; round < 20; ++round) {
    // 1. Merges of what there is so far; some make a token that another pair makes as well.
    std::vector<std::string> tokens(kSpellings.begin(), kSpellings.end() - 1);
    std::map<std::string, int32_t> ids;
    for (const std::string& token : tokens) ids.emplace(token, static_cast<int32_t>(ids.size()));
    std::vector<std::pair<std::string, std::string>> merges;
    for (int i = 0; i < 40; ++i) {
      const std::string left = tokens[random() % tokens.size()];
      const std::string right = tokens[random() % tokens.size()];
      if (ids.emplace(left + right, static_cast<int32_t>(ids.size())).second)
        tokens.push_back(left + right);
      merges.emplace_back(left, right);
    }
    Vocabulary vocabulary;
    for (const auto& [token, id] : ids) ASSERT_TRUE(vocabulary.Add(token, id).ok());
    ASSERT_TRUE(vocabulary.Index().ok());
    Bpe bpe(std::move(vocabulary), {});
    Ranks ranks;
    for (size_t i = 0; i < merges.size(); ++i) {
      ASSERT_TRUE(bpe.AddMerge(merges[i].first, merges[i].second).ok());
      ranks[merges[i]] = i;
    }
    // 2. Pieces on both sides of where another way of merging begins, and long ones.
    for (size_t length = 0; length < 200; ++length) {
      std::string piece;
      std::vector<std::string> parts;
      for (size_t i = 0; i < length; ++i) {
        const std::string& letter = kSpellings[random() % kSpellings.size()];
        piece += letter;
        if (letter != kSpellings.back()) parts.push_back(letter);
      }
      std::vector<Symbol> symbols;
      bpe.Encode(piece, &symbols);
      std::vector<std::string> found;
      for (const Symbol& symbol : symbols) found.emplace_back(bpe.vocabulary().TokenOf(symbol.id));
      ASSERT_EQ(found, Merged(parts, ranks)) << piece;
    }
  }
}

}  // namespace
}  // namespace keel::model
