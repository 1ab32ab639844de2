// The values of a box in row-major order, wherever they lie in memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <span>

#include "common/status.h"
#include "common/tensors/box.h"
#include "common/tensors/shard_table.h"

namespace keel {

// Calls visit(part, bytes) for parts of `box`, one behind the other in row-major order, each with a
// copy of its values that is there until visit returns: at most `at_once` bytes, or one element.
// `view` is the memory of `view_box`, which contains the box; a box has a dim at least. Ends with
// the first error of visit.
Status ForEachPacked(
    const Box& box, const Box& view_box, const StridedView& view, int64_t element_size,
    int64_t at_once,
    const std::function<Status(const Box& part, std::span<const std::byte>)>& visit);

}  // namespace keel
