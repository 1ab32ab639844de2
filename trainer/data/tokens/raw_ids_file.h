// RawIdsFile: a .bin of 16-bit ids and nothing else, as nanoGPT's prepare.py writes it, mapped.
//
// The file says nothing of itself: a document is the whole of it, and what its ids are of is for
// whoever names it to know. All tokens are learnt.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <utility>

#include "trainer/data/tokens/mapped_file.h"
#include "trainer/data/tokens/token_store.h"

namespace keel::trainer {

class RawIdsFile final : public TokenStore {
 public:
  // kNotFound; kInvalidData for an odd size, for what begins as another format does, and for
  // what looks like ids of 32 bits.
  static Result<std::shared_ptr<const RawIdsFile>> Open(const std::string& path);

  int64_t documents() const override { return 1; }
  int64_t Begin(int64_t document) const override { return document == 0 ? 0 : tokens_; }
  Status Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const override;
  bool learns_all() const override { return true; }
  Digest128 digest() const override { return digest_; }

 private:
  explicit RawIdsFile(std::unique_ptr<MappedFile> file);

  std::unique_ptr<MappedFile> file_;
  int64_t tokens_ = 0;
  Digest128 digest_;
};

}  // namespace keel::trainer
