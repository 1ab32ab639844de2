#include "trainer/data/tokens/shard_format.h"

#include <fmt/format.h>

#include <cstddef>
#include <cstring>

namespace keel::trainer {

namespace {

int64_t RoundUp(int64_t bytes, int64_t multiple) {
  return (bytes + multiple - 1) / multiple * multiple;
}

}  // namespace

ShardLayout ShardLayout::Of(const ShardHeader& header) {
  ShardLayout at;
  at.learn = RoundUp(at.ids + header.tokens * header.id_bytes, 8);
  at.begins = RoundUp(at.learn + header.has_learn * RoundUp(header.tokens, 8) / 8, 8);
  at.made = at.begins + (header.documents + 1) * 8;
  at.digests = RoundUp(at.made + header.made_bytes, 8);
  at.blocks = RoundUp(at.digests - kShardHeaderBytes, kShardBlockBytes) / kShardBlockBytes;
  at.file_bytes = at.digests + at.blocks * static_cast<int64_t>(sizeof(Digest128));
  return at;
}

Digest128 DigestOfHeader(const ShardHeader& header) {
  return Hash128(std::as_bytes(std::span(&header, 1)).first(offsetof(ShardHeader, header)));
}

Result<ShardHeader> ParseShardHeader(std::span<const std::byte> bytes, int64_t file_bytes,
                                     const std::string& name) {
  const auto refuse = [&](const std::string& text) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}", name, text));
  };
  ShardHeader header{};
  if (bytes.size() < static_cast<size_t>(kShardHeaderBytes)) {
    return refuse(fmt::format("{} bytes, a token shard has at least {}; it was cut off",
                              bytes.size(), kShardHeaderBytes));
  }
  std::memcpy(&header, bytes.data(), sizeof(header));
  if (std::memcmp(header.magic, kShardMagic, sizeof(kShardMagic)) != 0)
    return refuse("is no token shard: it does not begin with KEELTOK");
  if (header.version != kShardVersion) {
    return refuse(fmt::format("a token shard of version {}, this program reads version {}",
                              header.version, kShardVersion));
  }
  if (header.header != DigestOfHeader(header))
    return refuse("the header's digest does not hold: the file is damaged; tokenize it again");
  for (size_t i = sizeof(header); i < static_cast<size_t>(kShardHeaderBytes); ++i) {
    if (bytes[i] != std::byte{0}) return refuse("bytes behind the header that are not zero");
  }
  const auto check = [&](const char* field, int64_t value, int64_t least, int64_t most) {
    if (value >= least && value <= most) return Status::Ok();
    return refuse(fmt::format("{} is {}, expected {} to {}", field, value, least, most));
  };
  if (header.id_bytes != kRecordIdBytes && header.id_bytes != 2 && header.id_bytes != 4)
    return refuse(fmt::format("id_bytes is {}, expected 1, 2 or 4", header.id_bytes));
  KEEL_RETURN_IF_ERROR(check("tokens", header.tokens, 0, kMostShardTokens));
  KEEL_RETURN_IF_ERROR(
      check("documents", header.documents, header.tokens > 0 ? 1 : 0, header.tokens));
  const bool records = header.id_bytes == kRecordIdBytes;
  KEEL_RETURN_IF_ERROR(check("has_learn", header.has_learn, 0, records ? 0 : 1));
  KEEL_RETURN_IF_ERROR(check("made_bytes", header.made_bytes, 0, kMostMadeBytes));
  KEEL_RETURN_IF_ERROR(check("largest_id", header.largest_id, header.tokens > 0 ? 0 : -1,
                             header.tokens == 0     ? -1
                             : records              ? 0xff
                             : header.id_bytes == 2 ? 0xffff
                                                    : INT32_MAX));
  const ShardLayout at = ShardLayout::Of(header);
  if (at.file_bytes != file_bytes) {
    return refuse(
        fmt::format("{} bytes, its header says {}: it was cut off, or something was added",
                    file_bytes, at.file_bytes));
  }
  return header;
}

}  // namespace keel::trainer
