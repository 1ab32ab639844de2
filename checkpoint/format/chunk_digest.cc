#include "checkpoint/format/chunk_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "common/wire.h"

namespace keel::checkpoint {

Digest128 DigestOfChunks(int64_t size, std::span<const Digest128> chunks) {
  WireWriter words;
  words.I64(size).Pods(chunks);
  return Hash128(std::as_bytes(std::span(words.bytes())));
}

ChunkHasher::ChunkHasher(int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}

void ChunkHasher::Update(std::span<const std::byte> bytes) {
  result_.size += static_cast<int64_t>(bytes.size());
  while (!bytes.empty()) {
    if (in_chunk_ == 0 && static_cast<int64_t>(bytes.size()) >= chunk_bytes_) {
      result_.chunks.push_back(Hash128(bytes.first(static_cast<size_t>(chunk_bytes_))));
      bytes = bytes.subspan(static_cast<size_t>(chunk_bytes_));
      continue;
    }
    const size_t take = std::min(bytes.size(), static_cast<size_t>(chunk_bytes_ - in_chunk_));
    hasher_.Update(bytes.first(take));
    bytes = bytes.subspan(take);
    in_chunk_ += static_cast<int64_t>(take);
    if (in_chunk_ == chunk_bytes_) {
      result_.chunks.push_back(hasher_.Finish());
      in_chunk_ = 0;
    }
  }
}

ChunkedDigest ChunkHasher::Finish() {
  if (in_chunk_ > 0) result_.chunks.push_back(hasher_.Finish());
  in_chunk_ = 0;
  result_.whole = DigestOfChunks(result_.size, result_.chunks);
  return std::exchange(result_, ChunkedDigest{});
}

ChunkedDigest DigestOfText(std::string_view text, int64_t chunk_bytes) {
  ChunkHasher hasher(chunk_bytes);
  hasher.Update(std::as_bytes(std::span(text)));
  return hasher.Finish();
}

Status ReadBack(const FileSystem& fs, std::string_view path, const ChunkedDigest& written,
                int64_t chunk_bytes) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Open(path));
  file->DropCached();
  ChunkHasher hasher(chunk_bytes);
  std::vector<std::byte> buffer(static_cast<size_t>(chunk_bytes));
  for (int64_t at = 0, got = chunk_bytes; got == chunk_bytes; at += got) {
    KEEL_ASSIGN_OR_RETURN(got, file->ReadAt(at, buffer));
    hasher.Update(std::span(buffer).first(static_cast<size_t>(got)));
  }
  const ChunkedDigest actual = hasher.Finish();
  if (actual.size == written.size && actual.whole == written.whole) return Status::Ok();
  const auto [different, end] = std::mismatch(actual.chunks.begin(), actual.chunks.end(),
                                              written.chunks.begin(), written.chunks.end());
  return Status(StatusCode::kDataLoss,
                fmt::format("{}: read back, chunk {} is not what was written", fs.Describe(path),
                            different - actual.chunks.begin()));
}

}  // namespace keel::checkpoint
