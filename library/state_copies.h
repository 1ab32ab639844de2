// Whether ranks that give the same part of a tensor give the same values: of such copies one is
// written, and which one is nobody's business. Values that differ, as those of a random generator
// or of an optimizer that is split without saying so, would be lost without a word.
//
// A sample: of a part with more than some thousand elements those at its beginning, in its middle
// and at its end. Torch-free.
#pragma once

#include <span>
#include <string>

#include "common/status.h"
#include "common/tensors/shard_table.h"

namespace keel::library {

// What this rank tells of its parts: each tensor's name with digests of box and sampled values.
std::string SampleCopies(const ShardTable& table);

// On one rank, of what all have told, in rank order. kInvalidData names the tensors of which two
// ranks have the same box and other values.
Status CompareCopies(std::span<const std::string> samples);

}  // namespace keel::library
