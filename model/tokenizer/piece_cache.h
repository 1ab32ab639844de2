// PieceCache: the ids of pieces that were seen lately, one slot a hash value. Text repeats its
// words, so that most pieces need no merges. Not thread-safe: one a thread.
#pragma once

#include <algorithm>
#include <array>
#include <cstdint>
#include <cstring>
#include <span>
#include <string_view>
#include <vector>

#include "common/hash.h"

namespace keel::model {

class PieceCache {
 public:
  // Longer pieces, and those of more ids, are encoded each time.
  static constexpr size_t kMaxBytes = 30;
  static constexpr size_t kMaxIds = 8;

  PieceCache() : entries_(kEntries) {}

  static uint64_t HashOf(std::string_view piece) { return Hash64(piece); }

  // Appends the ids; false when the piece is not there.
  bool Find(std::string_view piece, uint64_t hash, std::vector<int32_t>* ids) const {
    const Entry& entry = entries_[hash & (kEntries - 1)];
    if (entry.size != piece.size() || entry.count == 0 ||
        std::memcmp(entry.bytes.data(), piece.data(), piece.size()) != 0) {
      return false;
    }
    for (uint8_t i = 0; i < entry.count; ++i) ids->push_back(entry.ids[i]);
    return true;
  }
  void Put(std::string_view piece, uint64_t hash, std::span<const int32_t> ids) {
    if (piece.size() > kMaxBytes || ids.empty() || ids.size() > kMaxIds) return;
    Entry& entry = entries_[hash & (kEntries - 1)];
    entry.size = static_cast<uint8_t>(piece.size());
    entry.count = static_cast<uint8_t>(ids.size());
    std::memcpy(entry.bytes.data(), piece.data(), piece.size());
    std::copy(ids.begin(), ids.end(), entry.ids.begin());
  }

 private:
  static constexpr size_t kEntries = size_t{1} << 16;
  struct alignas(64) Entry {
    uint8_t size = 0;
    uint8_t count = 0;  // 0: free
    std::array<char, kMaxBytes> bytes{};
    std::array<int32_t, kMaxIds> ids{};
  };
  std::vector<Entry> entries_;
};

}  // namespace keel::model
