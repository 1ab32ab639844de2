// MegatronFile: the documents of Megatron's indexed datasets, a .bin of ids and an .idx of where
// each sequence lies in it (megatron.core.datasets.indexed_dataset), mapped.
//
// These files have no checksums: every number of the index is checked against the sizes of both
// files when they are opened, ids when they are read. All tokens are learnt.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/data/tokens/mapped_file.h"
#include "trainer/data/tokens/token_store.h"

namespace keel::trainer {

class MegatronFile final : public TokenStore {
 public:
  // The common beginning of both names, where `path` is either of them or that beginning, and there
  // is an index.
  static std::optional<std::string> PrefixOf(const std::string& path);
  // kNotFound; kInvalidData names the file and the number that is wrong.
  static Result<std::shared_ptr<const MegatronFile>> Open(const std::string& prefix);

  int64_t documents() const override { return static_cast<int64_t>(begins_.size()) - 1; }
  int64_t Begin(int64_t document) const override { return begins_[static_cast<size_t>(document)]; }
  Status Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const override;
  bool learns_all() const override { return true; }
  Digest128 digest() const override { return digest_; }

 private:
  MegatronFile() = default;
  Status ReadIndex(const MappedFile& index);
  Status ReadRun(int64_t offset, std::span<int32_t> ids) const;

  std::unique_ptr<MappedFile> bin_;
  std::string name_;  // of the .bin, for messages
  int64_t width_ = 0;
  bool is_signed_ = false;
  std::vector<int64_t> begins_ = {0};     // tokens, by document
  std::vector<int64_t> sequences_ = {0};  // tokens, by sequence that is not empty
  std::vector<int64_t> offsets_;          // of these in the .bin
  Digest128 digest_;
};

// A digest of a file without checksums: its size, its beginning and end, and pages all over it.
// One that is made anew differs; a single token that is changed may not.
Digest128 SampledDigest(const MappedFile& file);

// `count` integers of `width` bytes (1, 2, 4 or 8) at `from`, as ids. False where one is negative
// or more than 31 bits.
bool WidenIds(const std::byte* from, int64_t width, bool is_signed, std::span<int32_t> ids);

}  // namespace keel::trainer
