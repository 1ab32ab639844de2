// Digests of a file in chunks: XXH3-128 of every `chunk_bytes` of it, and one digest of those.
//
// The writer takes them over the bytes in memory before they are written; every reader compares
// what came back from the disk, chunk by chunk, so that damage is found, and placed, at both ends.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/file_system.h"
#include "common/hash.h"
#include "common/status.h"

namespace keel::checkpoint {

struct ChunkedDigest {
  int64_t size = 0;               // bytes of the file
  std::vector<Digest128> chunks;  // one per started chunk; none for an empty file
  Digest128 whole;                // DigestOfChunks(size, chunks)
};

// XXH3-128 over the size and the chunks' digests, all as little-endian 64-bit words (low half
// first).
Digest128 DigestOfChunks(int64_t size, std::span<const Digest128> chunks);

inline int64_t ChunkCount(int64_t size, int64_t chunk_bytes) {
  return (size + chunk_bytes - 1) / chunk_bytes;
}

// Takes a stream of bytes in any pieces. Not thread-safe.
class ChunkHasher {
 public:
  explicit ChunkHasher(int64_t chunk_bytes);
  void Update(std::span<const std::byte> bytes);
  ChunkedDigest Finish();  // and starts anew

 private:
  int64_t chunk_bytes_;
  int64_t in_chunk_ = 0;
  Hasher128 hasher_;
  ChunkedDigest result_;
};

ChunkedDigest DigestOfText(std::string_view text, int64_t chunk_bytes);
// Reads the whole file, from the disk where the system lets it, and compares. kDataLoss names the
// first chunk that is not what was written.
Status ReadBack(const FileSystem& fs, std::string_view path, const ChunkedDigest& written,
                int64_t chunk_bytes);

}  // namespace keel::checkpoint
