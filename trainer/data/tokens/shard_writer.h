// ShardWriter: writes one token shard (shard_format.h), document by document.
//
// Ids go to the disk as they come; a bit and, a document, 8 bytes stay in memory until Finish. Not
// thread-safe. What it was writing when it is destroyed is not a shard: its header is written last.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/file_system.h"
#include "common/hash.h"
#include "common/json.h"
#include "common/status.h"
#include "trainer/data/tokens/shard_format.h"

namespace keel::trainer {

class ShardWriter {
 public:
  // Creates `path`; kAlreadyExists. `id_bytes`: 2 holds ids below 65,536, 4 all, 1 records of
  // bytes.
  static Result<ShardWriter> Create(FileSystem& files, std::string_view path, uint32_t id_bytes,
                                    const Digest128& tokenizer);

  // A document; learn[i] of 0 or 1 says whether id i is to be learnt. An empty one is left out.
  // kInvalidData for an id that is negative or needs more bytes.
  Status Add(std::span<const int32_t> ids, std::span<const uint8_t> learn);
  // A record, of a shard with id_bytes 1 alone; an empty one is left out.
  Status AddRecord(std::span<const std::byte> record);
  // What is left, the header, and the disk's word that all is there. `made`: what made it.
  Result<ShardHeader> Finish(const Json& made);

 private:
  ShardWriter(std::unique_ptr<File> file, std::string name, uint32_t id_bytes,
              const Digest128& tokenizer);
  // To the end of the file, through the blocks whose digests are kept.
  Status Append(std::span<const std::byte> bytes);
  Status AppendZeros();  // up to the next multiple of 8
  Status FlushBlock();

  std::unique_ptr<File> file_;
  std::string name_;
  ShardHeader header_{};
  std::vector<std::byte> block_;
  std::vector<Digest128> digests_;
  std::vector<uint8_t> learn_bits_;
  std::vector<int64_t> begins_ = {0};
  Hasher128 content_;
  std::vector<uint16_t> narrow_;
  int64_t written_ = kShardHeaderBytes;
  bool learns_all_ = true;
};

}  // namespace keel::trainer
