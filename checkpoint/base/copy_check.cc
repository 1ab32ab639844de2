#include "checkpoint/base/copy_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <set>
#include <string_view>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "common/tensors/packed_box.h"
#include "common/text.h"
#include "common/wire.h"

namespace keel::checkpoint {
namespace {

constexpr size_t kMostUnlike = 8;
// What is packed at once of memory that is not row-major.
constexpr int64_t kPackedBytes = int64_t{1} << 20;

Status Malformed(size_t rank) {
  return {StatusCode::kInternal, fmt::format("rank {} sent a malformed word of its tensors", rank)};
}

}  // namespace

PartKey KeyOf(const TensorInfo& tensor, const Box& box) {
  const std::string part = tensor.name + box.ToString();
  return Hash64(part);
}

// Of the values in row-major order.
uint64_t DigestOf(const TensorInfo& tensor, const Shard& shard) {
  const int64_t element_size = DTypeSize(tensor.dtype);
  const Box& box = shard.box;
  const auto bytes = static_cast<size_t>(box.elements() * element_size);
  if (shard.view.strides == ContiguousStrides(box.size))
    return Hash128(std::span(shard.view.data, bytes)).low;
  Hasher128 hasher;
  ThrowIfError(ForEachPacked(box, box, shard.view, element_size, kPackedBytes,
                             [&](const Box&, std::span<const std::byte> part) {
                               hasher.Update(part);
                               return Status::Ok();
                             }));
  return hasher.Finish().low;
}

std::string NameParts(const ShardTable& table) {
  std::set<PartKey> parts;
  for (const Shard& shard : table.shards()) parts.insert(KeyOf(table.tensor_of(shard), shard.box));
  return EncodeParts(parts);
}

std::string EncodeParts(const std::set<PartKey>& parts) {
  WireWriter out;
  out.U64(parts.size());
  for (const PartKey part : parts) out.U64(part);
  return std::move(out).Take();
}

Result<std::set<PartKey>> DecodeParts(std::string_view text) {
  WireReader in(text);
  uint64_t count = 0;
  bool whole = in.U64(&count);
  std::set<PartKey> parts;
  for (uint64_t i = 0; whole && i < count; ++i) {
    PartKey part = 0;
    whole = in.U64(&part);
    parts.insert(part);
  }
  if (!whole || !in.AtEnd())
    return Status(StatusCode::kInternal, "a malformed list of parts of tensors");
  return parts;
}

Result<std::set<PartKey>> SharedParts(std::span<const std::string> words) {
  std::set<PartKey> all, shared;
  for (size_t rank = 0; rank < words.size(); ++rank) {
    const Result<std::set<PartKey>> parts = DecodeParts(words[rank]);
    if (!parts.ok()) return Malformed(rank);
    for (const PartKey part : *parts) {
      if (!all.insert(part).second) shared.insert(part);
    }
  }
  return shared;
}

Status CompareCopies(std::span<const std::vector<CopyDigest>> ranks, std::string_view advice) {
  struct First {
    uint64_t values;
    size_t rank;
  };
  std::map<PartKey, First> firsts;
  std::vector<std::string> unlike;
  size_t count = 0;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    for (const CopyDigest& copy : ranks[rank]) {
      const First first = firsts.try_emplace(copy.part, First{copy.values, rank}).first->second;
      if (first.values == copy.values || ++count > kMostUnlike) continue;
      unlike.push_back(
          fmt::format("'{}' of ranks {} and {}", Printable(copy.name), first.rank, rank));
    }
  }
  if (count == 0) return Status::Ok();
  return Status(
      StatusCode::kInvalidData,
      fmt::format("nothing was saved: ranks give the same part of a tensor with other values, of "
                  "which one would be lost: {}{}. {}",
                  fmt::join(unlike, ", "),
                  count > kMostUnlike ? fmt::format(" and {} more", count - kMostUnlike) : "",
                  advice));
}

}  // namespace keel::checkpoint
