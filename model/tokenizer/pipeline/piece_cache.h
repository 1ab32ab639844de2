// PieceCache: the ids of pieces that were seen lately. Text repeats its words, so that most pieces
// need no merges. Not thread-safe: one a thread.
#pragma once

#include <algorithm>
#include <array>
#include <bit>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "common/hash.h"
#include "common/memory/huge_pages.h"
#include "model/tokenizer/pipeline/vocabulary.h"

namespace keel::model {

// Sets of a few entries, by the hash value; a piece that comes takes the place of the one of its
// set that came first. One entry alone would lose, of two frequent words with the same value, the
// one for the other each time.
class PieceCache {
 public:
  // What a piece and its ids may have in all; others are encoded each time.
  static constexpr size_t kMaxBytes = 60;
  // Of an id, the low ones first.
  static constexpr size_t kIdBytes = 3;
  static_assert(Vocabulary::kMaxId <= 1 << 8 * kIdBytes);
  static_assert(std::endian::native == std::endian::little);

  PieceCache() : entries_(kSets * kWays) {}

  static uint64_t HashOf(std::string_view piece) { return Hash64(piece); }

  // Has the entries that may have the piece brought from memory.
  void Prefetch(uint64_t hash) const { __builtin_prefetch(&entries_[SetOf(hash)]); }

  // Appends the ids; false when the piece is not there.
  bool Find(std::string_view piece, uint64_t hash, std::vector<int32_t>* ids) const {
    const Entry* set = &entries_[SetOf(hash)];
    for (const Entry* entry = set; entry < set + kWays; ++entry) {
      if (entry->tag != TagOf(hash) || entry->size != piece.size() || entry->count == 0 ||
          std::memcmp(entry->content.data() + entry->count * kIdBytes, piece.data(),
                      piece.size()) != 0) {
        continue;
      }
      for (size_t i = 0; i < entry->count; ++i) {
        int32_t id = 0;
        std::memcpy(&id, entry->content.data() + i * kIdBytes, kIdBytes);
        ids->push_back(id);
      }
      return true;
    }
    return false;
  }
  void Put(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
    if (ids.empty() || piece.size() + ids.size() * kIdBytes > kMaxBytes) return;
    Entry* set = &entries_[SetOf(hash)];
    std::copy_backward(set, set + kWays - 1, set + kWays);
    set->tag = TagOf(hash);
    set->size = static_cast<uint8_t>(piece.size());
    set->count = static_cast<uint8_t>(ids.size());
    char* content = set->content.data();
    for (const int32_t id : ids) {
      std::memcpy(content, &id, kIdBytes);
      content += kIdBytes;
    }
    std::memcpy(content, piece.data(), piece.size());
  }

 private:
  static constexpr size_t kWays = 4;
  static constexpr size_t kSets = size_t{1} << 14;
  struct alignas(64) Entry {
    uint16_t tag = 0;  // bits of the hash value that the set is not chosen by
    uint8_t size = 0;
    uint8_t count = 0;                      // 0: free
    std::array<char, kMaxBytes> content{};  // the ids, then the piece
  };
  static uint16_t TagOf(uint64_t hash) { return static_cast<uint16_t>(hash >> 48); }
  static size_t SetOf(uint64_t hash) { return (hash & (kSets - 1)) * kWays; }

  std::vector<Entry, HugePages<Entry>> entries_;
};

}  // namespace keel::model
