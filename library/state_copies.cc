#include "library/state_copies.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string_view>
#include <utility>
#include <vector>

#include "common/hash.h"
#include "common/tensors/tensor_digest.h"
#include "common/text.h"
#include "common/wire.h"

namespace keel::library {
namespace {

constexpr int64_t kSampled = 1024;  // elements of each of three places
constexpr size_t kMostUnlike = 8;

// So many elements of `box`, one after the other as far as that goes, at a place from 0, its
// beginning, to 2, its end.
Box PlaceIn(const Box& box, int place) {
  Box part = box;
  int64_t room = kSampled;
  for (int d = box.dims() - 1; d >= 0; --d) {
    part.size[d] = std::min(box.size[d], room);
    part.offset[d] += (box.size[d] - part.size[d]) * place / 2;
    room = std::max<int64_t>(1, room / part.size[d]);
  }
  return part;
}

uint64_t Sample(const TensorInfo& tensor, const Shard& shard) {
  const auto of = [&](const Box& box) {
    return BoxDigest(tensor.shape, tensor.dtype, box, shard.box, shard.view);
  };
  if (shard.box.elements() <= 3 * kSampled) return of(shard.box);
  return of(PlaceIn(shard.box, 0)) + 3 * of(PlaceIn(shard.box, 1)) + 5 * of(PlaceIn(shard.box, 2));
}

}  // namespace

std::string SampleCopies(const ShardTable& table) {
  WireWriter out;
  out.U64(table.shards().size());
  for (const Shard& shard : table.shards()) {
    const TensorInfo& tensor = table.tensor_of(shard);
    out.Text(tensor.name);
    const std::string box = shard.box.ToString();
    out.U64(Hash128(std::as_bytes(std::span(box))).low);
    out.U64(Sample(tensor, shard));
  }
  return std::move(out).Take();
}

Status CompareCopies(std::span<const std::string> samples) {
  struct First {
    uint64_t digest;
    size_t rank;
  };
  std::map<std::pair<std::string_view, uint64_t>, First> firsts;  // of a tensor's box
  std::vector<std::string> unlike;
  size_t count = 0;
  for (size_t rank = 0; rank < samples.size(); ++rank) {
    WireReader in(samples[rank]);
    uint64_t parts = 0;
    bool whole = in.U64(&parts);
    for (uint64_t i = 0; whole && i < parts; ++i) {
      std::string_view name;
      uint64_t box = 0, digest = 0;
      whole = in.View(&name) && in.U64(&box) && in.U64(&digest);
      if (!whole) break;
      const First first = firsts.try_emplace({name, box}, First{digest, rank}).first->second;
      if (first.digest == digest || ++count > kMostUnlike) continue;
      unlike.push_back(fmt::format("'{}' of ranks {} and {}", Printable(name), first.rank, rank));
    }
    if (!whole || !in.AtEnd())
      return Status(StatusCode::kInternal,
                    fmt::format("rank {} sent a malformed sample of its tensors", rank));
  }
  if (count == 0) return Status::Ok();
  return Status(
      StatusCode::kInvalidData,
      fmt::format("nothing was saved: ranks give the same part of a tensor with other values, of "
                  "which one would be lost: {}{}. Give each rank's a name of its own, say which "
                  "part of a whole each is (Shard), or name in from_rank_0 those of which rank 0's "
                  "stands for all",
                  fmt::join(unlike, ", "),
                  count > kMostUnlike ? fmt::format(" and {} more", count - kMostUnlike) : ""));
}

}  // namespace keel::library
