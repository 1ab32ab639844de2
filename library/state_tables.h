// From the state of a program to the shard table of a checkpoint, with every rule said by name.
#pragma once

#include <span>
#include <string_view>

#include "common/status.h"
#include "common/tensors/shard_table.h"
#include "library/state.h"

namespace keel::library {

// The role of a checkpoint that holds such a state, and the document with SaveOptions::extra.
inline constexpr std::string_view kRole = "state";
inline constexpr std::string_view kExtraName = "state.json";

// The table of `rank`, with views of the caller's memory; without tensors and boxes that have no
// elements. `to_be_written`: by a load, so that no element may lie upon another. kInvalidData names
// the tensor and what is wrong with it.
Result<ShardTable> TableOf(std::span<const StateTensor> state, int rank, bool to_be_written);

}  // namespace keel::library
