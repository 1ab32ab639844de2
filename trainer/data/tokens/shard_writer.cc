#include "trainer/data/tokens/shard_writer.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

namespace keel::trainer {

ShardWriter::ShardWriter(std::unique_ptr<File> file, std::string name, uint32_t id_bytes,
                         const Digest128& tokenizer)
    : file_(std::move(file)), name_(std::move(name)) {
  std::memcpy(header_.magic, kShardMagic, sizeof(kShardMagic));
  header_.version = kShardVersion;
  header_.id_bytes = id_bytes;
  header_.largest_id = -1;
  header_.tokenizer = tokenizer;
  block_.reserve(static_cast<size_t>(kShardBlockBytes));
}

Result<ShardWriter> ShardWriter::Create(FileSystem& files, std::string_view path, uint32_t id_bytes,
                                        const Digest128& tokenizer) {
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, files.Create(path, {}));
  return ShardWriter(std::move(file), files.Describe(path), id_bytes, tokenizer);
}

Status ShardWriter::Add(std::span<const int32_t> ids, std::span<const uint8_t> learn) {
  if (ids.empty()) return Status::Ok();
  const auto [least, most] = std::minmax_element(ids.begin(), ids.end());
  if (*least < 0 || (header_.id_bytes == 2 && *most > 0xffff)) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: token {} does not fit into {} bytes", name_,
                              *least < 0 ? *least : *most, header_.id_bytes));
  }
  header_.largest_id = std::max<int64_t>(header_.largest_id, *most);
  const auto count = static_cast<int64_t>(ids.size());
  // The content's digest knows nothing of how it is stored: ids as 32 bits, masks as bytes.
  content_.Update(std::as_bytes(std::span(&count, 1)));
  content_.Update(std::as_bytes(ids));
  content_.Update(std::as_bytes(learn));
  for (const uint8_t one : learn) {
    if (header_.tokens % 8 == 0) learn_bits_.push_back(0);
    learn_bits_.back() = static_cast<uint8_t>(learn_bits_.back() | (one << (header_.tokens % 8)));
    learns_all_ = learns_all_ && one != 0;
    ++header_.tokens;
  }
  begins_.push_back(header_.tokens);
  ++header_.documents;
  if (header_.id_bytes == 4) return Append(std::as_bytes(ids));
  narrow_.assign(ids.begin(), ids.end());
  return Append(std::as_bytes(std::span(narrow_)));
}

Status ShardWriter::AddRecord(std::span<const std::byte> record) {
  if (record.empty()) return Status::Ok();
  const auto count = std::ssize(record);
  content_.Update(std::as_bytes(std::span(&count, 1)));
  content_.Update(record);
  header_.largest_id = 0xff;
  header_.tokens += count;
  begins_.push_back(header_.tokens);
  ++header_.documents;
  return Append(record);
}

Status ShardWriter::Append(std::span<const std::byte> bytes) {
  while (!bytes.empty()) {
    const size_t room = static_cast<size_t>(kShardBlockBytes) - block_.size();
    const auto now = bytes.first(std::min(room, bytes.size()));
    block_.insert(block_.end(), now.begin(), now.end());
    bytes = bytes.subspan(now.size());
    if (block_.size() == static_cast<size_t>(kShardBlockBytes)) KEEL_RETURN_IF_ERROR(FlushBlock());
  }
  return Status::Ok();
}

Status ShardWriter::AppendZeros() {
  static constexpr std::byte kZeros[8] = {};
  return Append(std::span(kZeros).first((8 - block_.size() % 8) % 8));
}

Status ShardWriter::FlushBlock() {
  if (block_.empty()) return Status::Ok();
  digests_.push_back(Hash128(block_));
  KEEL_RETURN_IF_ERROR(file_->WriteAt(written_, block_));
  written_ += static_cast<int64_t>(block_.size());
  block_.clear();
  return Status::Ok();
}

Result<ShardHeader> ShardWriter::Finish(const Json& made) {
  const std::string text = made.dump();
  header_.has_learn = learns_all_ ? 0 : 1;
  header_.made_bytes = static_cast<int64_t>(text.size());
  KEEL_RETURN_IF_ERROR(AppendZeros());
  if (!learns_all_) KEEL_RETURN_IF_ERROR(Append(std::as_bytes(std::span(learn_bits_))));
  KEEL_RETURN_IF_ERROR(AppendZeros());
  KEEL_RETURN_IF_ERROR(Append(std::as_bytes(std::span(begins_))));
  KEEL_RETURN_IF_ERROR(Append(std::as_bytes(std::span(text))));
  KEEL_RETURN_IF_ERROR(AppendZeros());
  KEEL_RETURN_IF_ERROR(FlushBlock());
  const auto digests = std::as_bytes(std::span(digests_));
  KEEL_RETURN_IF_ERROR(file_->WriteAt(written_, digests));
  header_.content = content_.Finish();
  header_.blocks = Hash128(digests);
  header_.header = DigestOfHeader(header_);
  std::vector<std::byte> page(static_cast<size_t>(kShardHeaderBytes));
  std::memcpy(page.data(), &header_, sizeof(header_));
  KEEL_RETURN_IF_ERROR(file_->WriteAt(0, page));
  KEEL_RETURN_IF_ERROR(file_->Sync());
  KEEL_RETURN_IF_ERROR(file_->Close());
  return header_;
}

}  // namespace keel::trainer
