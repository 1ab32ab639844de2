// Bpe: byte-pair encoding of one piece of text, as `tokenizers` has it: the characters are the
// first symbols, and the pair of neighbours with the lowest rank is merged, the leftmost first,
// until none is left that has a rank.
#pragma once

#include <bitset>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/memory/huge_pages.h"
#include "common/status.h"
#include "model/tokenizer/pipeline/vocabulary.h"

namespace keel::model {

struct BpeOptions {
  bool ignore_merges = false;  // a piece that is a token as a whole is that token
  bool byte_fallback = false;  // an unknown character becomes the tokens <0xE2> of its bytes
  bool fuse_unk = false;       // unknown characters side by side are one unknown token
  std::optional<int32_t> unk;  // without it unknown characters are left out
};

// One symbol of a piece.
struct Symbol {
  int32_t id = 0;
  uint32_t length = 0;   // bytes of the piece
  uint32_t skipped = 0;  // bytes of the piece right before it that were left out
};

// Immutable once built; thread-safe.
class Bpe {
 public:
  // `vocabulary` is indexed.
  Bpe(Vocabulary vocabulary, BpeOptions options);

  // The next merge in rank. kInvalidData, naming the token, when the vocabulary lacks a part or the
  // whole.
  Status AddMerge(std::string_view left, std::string_view right);
  void ReserveMerges(size_t count);

  // Appends the symbols of `piece`, which is well-formed UTF-8.
  void Encode(std::string_view piece, std::vector<Symbol>* symbols) const;

  // Whether no merge joins what stands before a mark "▁" with it, so that a piece may be cut there:
  // its parts have the same symbols apart as together.
  bool cuts_at_marks() const { return cuts_at_marks_; }
  // The same between two characters, by their code points.
  bool cuts_between(uint32_t left, uint32_t right) const {
    if (left < 128 && right < 128) return !joined_[left * 128 + right];
    return !joins_more_ && !joined_beyond_[PlaceBeyond(left, right)];
  }

  const Vocabulary& vocabulary() const { return vocabulary_; }
  std::optional<int32_t> unk() const { return options_.unk; }

 private:
  struct Merge {
    uint64_t pair = kFree;
    uint32_t rank = 0;
    int32_t id = 0;
  };
  static constexpr uint64_t kFree = ~uint64_t{0};
  static constexpr size_t kBitsASlot = 4;
  static constexpr int kBeyondBits = 20;

  // Of two characters that are not both ASCII; others may have the same.
  static size_t PlaceBeyond(uint32_t left, uint32_t right) {
    const uint64_t pair = (uint64_t{left} << 32 | right) * 0x9E3779B97F4A7C15u;
    return static_cast<size_t>(pair >> (64 - kBeyondBits));
  }
  const Merge* FindMerge(int32_t left, int32_t right) const;
  void Grow(size_t slots);
  void Put(const Merge& merge);
  Merge* SlotOf(uint64_t pair);
  void FirstSymbols(std::string_view piece, std::vector<Symbol>* symbols) const;
  void JoinUnknown();
  bool AddBytes(std::string_view character, uint32_t skipped, std::vector<Symbol>* symbols) const;
  void MergeFew(size_t first, std::vector<Symbol>* symbols) const;
  void MergeMany(size_t first, std::vector<Symbol>* symbols) const;

  Vocabulary vocabulary_;
  BpeOptions options_;
  std::vector<Merge, HugePages<Merge>> merges_;  // an open hash table
  // By the hash value of a pair, whether it may have a merge: most that are asked for have none,
  // and this is small enough to stay near the processor.
  std::vector<bool> may_merge_;
  uint32_t merge_count_ = 0;
  bool cuts_at_marks_ = false;
  bool all_bytes_ = false;  // unknown characters are always their bytes' tokens
  // Pairs of neighbours that some merge, or fusing, may join: both ASCII; others, by their hash, so
  // that a pair may be taken for one that is joined; whether all others are.
  std::bitset<128 * 128> joined_;
  std::vector<bool> joined_beyond_ = std::vector<bool>(size_t{1} << kBeyondBits);
  bool joins_more_ = false;
  std::vector<int32_t> character_ids_;  // by code point, up to the last that is a token; -1: none
  std::vector<int32_t> byte_ids_;       // of <0x00> ... <0xFF>; -1 for none
};

}  // namespace keel::model
