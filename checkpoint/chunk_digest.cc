#include "checkpoint/chunk_digest.h"

#include <fmt/format.h>

#include <algorithm>
#include <memory>
#include <utility>

#include "checkpoint/wire.h"

namespace keel::checkpoint {

Digest128 DigestOfChunks(int64_t size, std::span<const Digest128> chunks) {
  WireWriter words;
  words.I64(size);
  for (const Digest128& digest : chunks) {
    words.U64(digest.low);
    words.U64(digest.high);
  }
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

Result<ChunkedDigest> DigestOfFile(const FileSystem& fs, std::string_view path,
                                   int64_t chunk_bytes) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Open(path));
  ChunkHasher hasher(chunk_bytes);
  std::vector<std::byte> buffer(static_cast<size_t>(chunk_bytes));
  int64_t at = 0;
  for (;;) {
    KEEL_ASSIGN_OR_RETURN(const int64_t got, file->ReadAt(at, buffer));
    hasher.Update(std::span(buffer).first(static_cast<size_t>(got)));
    at += got;
    if (got < chunk_bytes) return hasher.Finish();
  }
}

}  // namespace keel::checkpoint
