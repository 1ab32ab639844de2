#include "model/tokenizer/pipeline/piece_cache.h"

#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keel::model {
namespace {

std::vector<int32_t> Found(const PieceCache& cache, std::string_view piece, uint64_t hash) {
  std::vector<int32_t> ids;
  const bool found = cache.Find(piece, hash, &ids);
  EXPECT_EQ(found, !ids.empty());
  return ids;
}

TEST(PieceCache, WhatWasPutIsFound) {
  PieceCache cache;
  const std::vector<int32_t> ids = {0, 1, 255, 256, 65535, 65536, Vocabulary::kMaxId - 1};
  for (size_t count = 1; count <= ids.size(); ++count) {
    for (size_t size = 1; size <= PieceCache::kMaxBytes + 1; ++size) {
      const std::string piece(size, static_cast<char>('a' + count));
      const std::vector<int32_t> some(ids.begin(),
                                      ids.begin() + static_cast<std::ptrdiff_t>(count));
      cache.Put(piece, PieceCache::HashOf(piece), some);
      const bool fits = size + count * PieceCache::kIdBytes <= PieceCache::kMaxBytes;
      EXPECT_EQ(Found(cache, piece, PieceCache::HashOf(piece)),
                fits ? some : std::vector<int32_t>{});
    }
  }
  EXPECT_EQ(Found(cache, "never", PieceCache::HashOf("never")), std::vector<int32_t>{});
}

// Pieces that have all of their hash value in common are told apart by their bytes, also where one
// is the beginning of another; the fifth of a set takes the place of the first.
TEST(PieceCache, OfOneSetTheOldestGoes) {
  PieceCache cache;
  constexpr uint64_t kHash = 0x1234567890ABCDEF;
  const std::vector<std::string> pieces = {"a", "ab", "abc", "b", "bc"};
  for (size_t i = 0; i < pieces.size(); ++i) {
    EXPECT_EQ(Found(cache, pieces[i], kHash), std::vector<int32_t>{});
    cache.Put(pieces[i], kHash, std::vector<int32_t>{static_cast<int32_t>(i)});
  }
  EXPECT_EQ(Found(cache, pieces[0], kHash), std::vector<int32_t>{});
  for (size_t i = 1; i < pieces.size(); ++i)
    EXPECT_EQ(Found(cache, pieces[i], kHash), std::vector<int32_t>{static_cast<int32_t>(i)});
  EXPECT_EQ(Found(cache, pieces[1], kHash + 1), std::vector<int32_t>{});
}

}  // namespace
}  // namespace keel::model
