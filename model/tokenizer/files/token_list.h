// TokenList: a vocabulary as files of other kinds than tokenizer.json have it, and the
// tokenizer.json that says the same: there is one reader of tokenizers, and every other file is
// told to it.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/json.h"

namespace keel::model {

// As SentencePiece and GGUF files number them.
enum class TokenKind : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct TokenList {
  std::vector<std::string> tokens;  // by id; no two are equal
  std::vector<TokenKind> kinds;
  // The first is done first.
  std::vector<std::pair<std::string, std::string>> merges;
};

struct SpecialIds {
  std::optional<int64_t> bos, eos, unknown, padding;
  bool adds_bos = false, adds_eos = false;  // to every text
};

// How a byte-level vocabulary splits texts: parts of a tokenizer.json.
struct ByteLevelSplit {
  Json normalizer;
  Json pre_tokenizer;
  bool ignore_merges = false;
};

// By an expression alone, of a vocabulary of ranks: a piece that is a token is that token.
ByteLevelSplit SplitBy(std::string_view pattern);

// Tokens are spelt in the alphabet of bytes (byte_alphabet.h).
Json ByteLevelTokenizer(const TokenList& list, const SpecialIds& ids, const ByteLevelSplit& split);
// Where a space comes before a text: nowhere, before each of its parts between added tokens, or
// before the first, where that has none.
enum class SpaceBefore { kNone, kEachPart, kFirstPart };
// Spaces as U+2581, and what is not in the vocabulary byte by byte.
Json SentencePieceTokenizer(const TokenList& list, const SpecialIds& ids, SpaceBefore space);

// SentencePiece joins the two neighbours whose token has the best score. As a list: each token
// split everywhere where both parts are tokens, the best scores first; of equal scores the longer
// parts first, then the parts' ids: the order that transformers gives. `ids` are of list's tokens.
std::vector<std::pair<std::string, std::string>> MergesByScore(
    const TokenList& list, const std::vector<float>& scores,
    const std::unordered_map<std::string_view, int64_t>& ids);

}  // namespace keel::model
