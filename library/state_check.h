// Says in a library's words whether a checkpoint holds the state that is to be filled, before
// anything is read of it.
#pragma once

#include <span>
#include <string>

#include "common/status.h"
#include "common/tensors/shard_table.h"
#include "library/state.h"

namespace keel::library {

// kInvalidData lists the tensors of `table` that are missing in `saved`, or of another shape or
// dtype; with `alone`, where this rank has all of the state, those of `saved` without a place, too.
// Patterns of `allow_missing` let them be.
Status CheckHolds(const StateDescription& saved, const ShardTable& table,
                  std::span<const std::string> allow_missing, bool alone);

// kInvalidData lists what every rank named of the `extra` of `saved` as without a place in its
// state; `ranks` has each one's list, as WireWriter::Texts writes it.
Status CheckPlaced(const StateDescription& saved, std::span<const std::string> ranks);

}  // namespace keel::library
