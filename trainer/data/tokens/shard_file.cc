#include "trainer/data/tokens/shard_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "common/text.h"

namespace keel::trainer {

ShardFile::ShardFile(std::unique_ptr<MappedFile> file, const ShardHeader& header)
    : file_(std::move(file)),
      name_("token shard " + Printable(file_->path())),
      header_(header),
      at_(ShardLayout::Of(header)),
      begins_(reinterpret_cast<const int64_t*>(At(at_.begins)),
              static_cast<size_t>(header.documents) + 1),
      checked_(static_cast<size_t>(at_.blocks)) {}

Result<std::shared_ptr<const ShardFile>> ShardFile::Open(const std::string& path) {
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<MappedFile> file, MappedFile::Open(path));
  const std::span<const std::byte> bytes = file->bytes();
  KEEL_ASSIGN_OR_RETURN(const ShardHeader header,
                        ParseShardHeader(bytes, static_cast<int64_t>(bytes.size()),
                                         "token shard " + Printable(path)));
  const std::shared_ptr<const ShardFile> shard(new ShardFile(std::move(file), header));
  KEEL_RETURN_IF_ERROR(shard->CheckBegins());
  return shard;
}

Status ShardFile::CheckBegins() const {
  const auto digests = file_->bytes().subspan(static_cast<size_t>(at_.digests));
  if (Hash128(digests) != header_.blocks) {
    return Status(StatusCode::kDataLoss,
                  fmt::format("{}: the digest of its blocks' digests does not hold: the file is "
                              "damaged; tokenize it again",
                              name_));
  }
  KEEL_RETURN_IF_ERROR(CheckBlocks(at_.begins, at_.digests));
  // Not empty, so that neither a search nor a sum over them can go wrong.
  bool rises = begins_.front() == 0 && begins_.back() == header_.tokens;
  for (size_t i = 1; i < begins_.size(); ++i) rises = rises && begins_[i - 1] < begins_[i];
  file_->Release(at_.begins, at_.digests - at_.begins);
  if (rises) return Status::Ok();
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: the beginnings of its {} documents do not rise from 0 to its {} "
                            "tokens",
                            name_, header_.documents, header_.tokens));
}

Status ShardFile::CheckBlocks(int64_t begin, int64_t end) const {
  if (begin >= end) return Status::Ok();
  const int64_t first = (begin - kShardHeaderBytes) / kShardBlockBytes;
  const int64_t last = (end - 1 - kShardHeaderBytes) / kShardBlockBytes;
  for (int64_t block = first; block <= last; ++block) {
    std::atomic<uint8_t>& checked = checked_[static_cast<size_t>(block)];
    if (checked.load(std::memory_order_acquire) != 0) continue;
    const int64_t from = kShardHeaderBytes + block * kShardBlockBytes;
    const int64_t to = std::min(from + kShardBlockBytes, at_.digests);
    Digest128 expected;
    std::memcpy(&expected, At(at_.digests + block * static_cast<int64_t>(sizeof(Digest128))),
                sizeof(expected));
    const Digest128 found = Hash128({At(from), static_cast<size_t>(to - from)});
    if (found != expected) {
      return Status(StatusCode::kDataLoss,
                    fmt::format("{}: bytes {} to {} have digest {}, expected {}: the file is "
                                "damaged; tokenize it again",
                                name_, from, to, found.ToHex(), expected.ToHex()));
    }
    checked.store(1, std::memory_order_release);
  }
  return Status::Ok();
}

Status ShardFile::Verify() const {
  constexpr int64_t kStep = 256 * kShardBlockBytes;
  for (int64_t from = kShardHeaderBytes; from < at_.digests; from += kStep) {
    const int64_t to = std::min(from + kStep, at_.digests);
    KEEL_RETURN_IF_ERROR(CheckBlocks(from, to));
    file_->Release(from, to - from);
  }
  return Status::Ok();
}

Status ShardFile::Read(int64_t begin, std::span<int32_t> ids, std::span<uint8_t> learn) const {
  KEEL_RETURN_IF_ERROR(file_->CheckUnchanged());
  if (!ids.empty()) {
    const auto count = static_cast<int64_t>(ids.size());
    const int64_t from = at_.ids + begin * header_.id_bytes;
    KEEL_RETURN_IF_ERROR(CheckBlocks(from, from + count * header_.id_bytes));
    if (header_.id_bytes == kRecordIdBytes) {
      const auto* const stored = reinterpret_cast<const uint8_t*>(At(from));
      std::copy_n(stored, ids.size(), ids.begin());
    } else if (header_.id_bytes == 2) {
      const auto* const stored = reinterpret_cast<const uint16_t*>(At(from));
      std::copy_n(stored, ids.size(), ids.begin());
    } else {
      std::memcpy(ids.data(), At(from), ids.size_bytes());
    }
    file_->Release(from, count * header_.id_bytes);
    // What the index of the folder was held against; ids of more than 31 bits are above it, too.
    uint32_t most = 0;
    for (const int32_t id : ids) most = std::max(most, static_cast<uint32_t>(id));
    if (int64_t{most} > header_.largest_id) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: id {} among tokens {} to {}, its header says that {} is the "
                                "largest",
                                name_, most, begin, begin + count, header_.largest_id));
    }
  }
  if (learn.empty()) return file_->CheckUnchanged();
  if (learns_all()) {
    std::fill(learn.begin(), learn.end(), uint8_t{1});
    return file_->CheckUnchanged();
  }
  const int64_t end = begin + static_cast<int64_t>(learn.size());
  KEEL_RETURN_IF_ERROR(CheckBlocks(at_.learn + begin / 8, at_.learn + (end + 7) / 8));
  const auto* const bits = reinterpret_cast<const uint8_t*>(At(at_.learn));
  for (int64_t i = begin; i < end; ++i)
    learn[static_cast<size_t>(i - begin)] = static_cast<uint8_t>((bits[i / 8] >> (i % 8)) & 1);
  file_->Release(at_.learn + begin / 8, (end - begin) / 8);
  return file_->CheckUnchanged();
}

Status ShardFile::ReadBytes(int64_t begin, std::span<std::byte> bytes) const {
  if (header_.id_bytes != kRecordIdBytes) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: holds tokens, expected records", name_));
  }
  if (bytes.empty()) return Status::Ok();
  KEEL_RETURN_IF_ERROR(file_->CheckUnchanged());
  const int64_t from = at_.ids + begin, count = std::ssize(bytes);
  KEEL_RETURN_IF_ERROR(CheckBlocks(from, from + count));
  std::memcpy(bytes.data(), At(from), bytes.size());
  file_->Release(from, count);
  return file_->CheckUnchanged();
}

Result<Json> ShardFile::Made() const {
  return ParseJson(
      {reinterpret_cast<const char*>(At(at_.made)), static_cast<size_t>(header_.made_bytes)},
      name_ + ": what made it");
}

}  // namespace keel::trainer
