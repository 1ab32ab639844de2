// The file of a token shard, version 1: what stands where. docs/formats/tokens.md is its page.
//
//   header    kShardHeaderBytes
//   ids       tokens x id_bytes
//   learn     a bit a token, the first in the lowest; not there where all tokens are learnt
//   begins    (documents + 1) x 8: where each document begins, and the number of tokens
//   made      JSON: what made it
//   digests   16 a block: XXH3-128 of each kShardBlockBytes from the end of the header on
//
// With id_bytes 1 the documents are records of bytes, not of tokens: what is called a token is a
// byte, and all are learnt.
//
// Each section begins at a multiple of 8, zeros between; integers are little-endian. All offsets
// follow from the header's counts, so none can point elsewhere.
#pragma once

#include <cstdint>
#include <span>
#include <string>

#include "common/hash.h"
#include "common/status.h"

namespace keel::trainer {

inline constexpr char kShardMagic[8] = {'K', 'E', 'E', 'L', 'T', 'O', 'K', '\n'};
inline constexpr uint32_t kShardVersion = 1;
inline constexpr uint32_t kRecordIdBytes = 1;
inline constexpr int64_t kShardHeaderBytes = 4096;
inline constexpr int64_t kShardBlockBytes = int64_t{64} << 10;
// Beyond it no count of a file fits in 64 bits of bytes.
inline constexpr int64_t kMostShardTokens = int64_t{1} << 40;
inline constexpr int64_t kMostMadeBytes = int64_t{1} << 20;

// As it stands in the file; zeros up to kShardHeaderBytes.
struct ShardHeader {
  char magic[8];
  uint32_t version;
  uint32_t id_bytes;  // 2 or 4; 1 of records
  int64_t tokens;
  int64_t documents;  // none of them empty
  int64_t has_learn;  // 0 or 1
  int64_t made_bytes;
  int64_t largest_id;   // -1 where there are no tokens
  Digest128 tokenizer;  // of what made the ids; zeros where they came with the rows
  Digest128 content;    // of documents, ids and masks, however they are stored
  Digest128 blocks;     // of the section of digests
  Digest128 header;     // of all before it
};
static_assert(sizeof(ShardHeader) == 120);

// Offsets of the sections, by the header's counts.
struct ShardLayout {
  int64_t ids = kShardHeaderBytes;
  int64_t learn = 0;
  int64_t begins = 0;
  int64_t made = 0;
  int64_t digests = 0;  // where the blocks end, too
  int64_t blocks = 0;
  int64_t file_bytes = 0;

  static ShardLayout Of(const ShardHeader& header);
};

Digest128 DigestOfHeader(const ShardHeader& header);
// The header of a file of `file_bytes` that begins with `bytes`. kInvalidData, naming the file,
// says which field is wrong: what it may be used for holds afterwards.
Result<ShardHeader> ParseShardHeader(std::span<const std::byte> bytes, int64_t file_bytes,
                                     const std::string& name);

}  // namespace keel::trainer
