// Whether ranks that give the same part of a tensor give the same values: of such copies one is
// written, and which one is nobody's business. Values that differ, as those of a random generator
// or of an optimizer that is split without saying so, would be lost without a word.
//
// Nothing is read that one rank alone has: each rank names its parts, rank 0 says which of them
// several have, and the save takes a digest of every byte of these while it copies. Torch-free.
#pragma once

#include <cstdint>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

// What a part is known by: its tensor's name, and its box.
using PartKey = uint64_t;
PartKey KeyOf(const TensorInfo& tensor, const Box& box);

// 1. On each rank: its parts.
std::string NameParts(const ShardTable& table);
// 2. On one rank, of what all have named: those of more than one rank.
Result<std::set<PartKey>> SharedParts(std::span<const std::string> words);
std::string EncodeParts(const std::set<PartKey>& parts);
Result<std::set<PartKey>> DecodeParts(std::string_view text);

// 3. On each rank, of a shared part that it has: its values, however they lie in memory.
struct CopyDigest {
  std::string name;
  PartKey part = 0;
  uint64_t values = 0;
};
uint64_t DigestOf(const TensorInfo& tensor, const Shard& shard);
// 4. On one rank, of what all have told, in rank order. kInvalidData names the tensors of which two
// ranks have the same box and other values, and says what is advised (SettingNames::apart).
Status CompareCopies(std::span<const std::vector<CopyDigest>> ranks, std::string_view advice);

}  // namespace keel::checkpoint
