// Byte-pair vocabularies as tiktoken has them: byte strings by rank, and no list of merges. Two
// neighbours are merged when they are a token together, the one of the lowest rank first.
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/status.h"

namespace keel::model {

// The most bytes that a token may have: all its splits are tried.
inline constexpr size_t kLongestRanked = 1024;

struct RankVocabulary {
  std::vector<std::string> tokens;  // by rank, spelt in the alphabet of bytes
  // Every split of a token into two tokens; those of lower ranks first, and of one token those
  // whose parts have lower ranks: the order that transformers gives.
  std::vector<std::pair<std::string, std::string>> merges;
};

// kInvalidData, with `where` first, for a rank whose bytes are empty, too many, or another's; and
// where one of the 256 bytes is no token.
Result<RankVocabulary> MakeRankVocabulary(const std::vector<std::string>& bytes,
                                          std::string_view where);

// kInvalidData, with `where` first, for what is not base64 with its padding.
Result<std::string> DecodeBase64(std::string_view text, std::string_view where);

}  // namespace keel::model
