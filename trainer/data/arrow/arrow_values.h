// Values of Arrow's arrays as JSON, as pyarrow's to_pylist has them.
#pragma once

#include <arrow/array.h>

#include <cstdint>
#include <string>

#include "common/json.h"
#include "common/status.h"

namespace keel::trainer {

// Of value i. Null, booleans, numbers, text, lists, structs, maps (a list of pairs), and
// dictionaries of these. What JSON has nothing for (bytes, times, decimals) becomes
// {"$arrow": "<type>"}, which no reader of rows takes for anything else. kInvalidData for text that
// is not UTF-8, a struct with a name twice, and lists that nest too deep.
Result<Json> ValueAt(const arrow::Array& array, int64_t i, int depth = 0);

}  // namespace keel::trainer
