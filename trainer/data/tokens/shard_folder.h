// A folder of token shards: tokens.json, which names them in order, and the shards.
//
// tokens.json is written last, so a folder that has none is not finished. Its page is
// docs/formats/tokens.md.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "common/files/file_system.h"
#include "common/hash.h"
#include "common/json.h"
#include "common/status.h"
#include "trainer/data/tokens/shard_file.h"
#include "trainer/data/tokens/token_store.h"

namespace keel::trainer {

inline constexpr const char* kShardFolderName = "tokens.json";

struct ShardEntry {
  std::string file;
  int64_t tokens = 0;
  int64_t documents = 0;
  int64_t bytes = 0;
  Digest128 header;  // of the shard's header, which has the digests of all else
};

struct ShardFolderIndex {
  std::string tokenizer;  // by which name it was given
  Digest128 tokenizer_digest;
  uint32_t id_bytes = 0;
  int64_t largest_id = -1;
  std::vector<std::string> warnings;  // of what the rows held that was not read
  int64_t rows = 0;                   // of the inputs, left out ones too
  Json plan;                          // what was asked for, and of which inputs
  std::vector<ShardEntry> shards;

  std::string ToJson() const;  // with a digest of itself
};

// kNotFound with the way out where there is no tokens.json; kInvalidData, kDataLoss.
Result<ShardFolderIndex> ReadShardFolderIndex(const std::string& folder);

// The shards of a folder as one store.
struct ShardFolder {
  ShardFolderIndex index;
  std::vector<std::shared_ptr<const ShardFile>> shards;

  // Each shard must be the one that tokens.json names, by its header's digest.
  static Result<ShardFolder> Open(const std::string& folder);
  std::shared_ptr<const TokenStore> tokens() const;
};

}  // namespace keel::trainer
