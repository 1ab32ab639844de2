// ShardFile: the documents of one token shard (shard_format.h), mapped.
//
// The header, the digests of the blocks and the table of documents are checked when it is opened;
// a block of ids or masks when it is first read. What a digest does not hold for is never given.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "common/json.h"
#include "trainer/data/tokens/mapped_file.h"
#include "trainer/data/tokens/shard_format.h"
#include "trainer/data/tokens/token_store.h"

namespace keel::trainer {

class ShardFile final : public TokenStore {
 public:
  // kNotFound; kInvalidData names the file and what of it is wrong; kDataLoss where a digest does
  // not hold.
  static Result<std::shared_ptr<const ShardFile>> Open(const std::string& path);

  const ShardHeader& header() const { return header_; }
  Result<Json> Made() const;
  // Reads all of it against its digests.
  Status Verify() const;

  int64_t documents() const override { return header_.documents; }
  // The last is the header's: to ask for the number of tokens touches no page.
  int64_t Begin(int64_t document) const override {
    return document == documents() ? header_.tokens : begins_[static_cast<size_t>(document)];
  }
  Status Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const override;
  // Bytes [begin, begin + bytes.size()) of all records, of a shard of these (id_bytes 1) alone.
  // Errors as Read.
  Status ReadBytes(int64_t begin, std::span<std::byte> bytes) const;
  bool learns_all() const override { return header_.has_learn == 0; }
  Digest128 digest() const override { return header_.content; }

 private:
  ShardFile(std::unique_ptr<MappedFile> file, const ShardHeader& header);
  Status CheckBegins() const;
  // Checks the blocks that bytes [begin, end) of the file lie in, those that are not yet.
  Status CheckBlocks(int64_t begin, int64_t end) const;
  const std::byte* At(int64_t offset) const { return file_->bytes().data() + offset; }

  std::unique_ptr<MappedFile> file_;
  std::string name_;  // for messages
  ShardHeader header_;
  ShardLayout at_;
  std::span<const int64_t> begins_;
  mutable std::vector<std::atomic<uint8_t>> checked_;  // by block
};

}  // namespace keel::trainer
