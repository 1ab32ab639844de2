// Says in a library's words whether a checkpoint holds the state that is to be filled, before
// anything is read of it.
#pragma once

#include <cstddef>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/tensors/shard_table.h"
#include "library/state.h"

namespace keel::library {

// The tensors of `saved` that this rank has no place for in `table`, by their places in its list.
// Patterns of `allow_missing` let them be.
std::vector<size_t> Unplaced(const StateDescription& saved, const ShardTable& table,
                             std::span<const std::string> allow_missing);

// kInvalidData lists the tensors of `table` that are missing in `saved`, or of another shape or
// dtype, but for patterns of `allow_missing`, and `unplaced`: what no rank has a place for.
Status CheckHolds(const StateDescription& saved, const ShardTable& table,
                  std::span<const std::string> allow_missing,
                  std::span<const std::string> unplaced);

// What one rank of several has no place for: of the tensors, and of what the caller names besides.
std::string EncodeUnplaced(std::span<const size_t> tensors, size_t all_tensors,
                           const std::vector<std::string>& values);
// The names that are unplaced by all ranks, from what each encoded. kInternal for any other text.
Result<std::vector<std::string>> UnplacedByAll(const StateDescription& saved,
                                               std::span<const std::string> ranks);

}  // namespace keel::library
