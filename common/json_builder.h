// BuildJson: the parser behind ParseJson (common/json.h), and by itself for files that programs
// with larger integers have written.
#pragma once

#include <string_view>

#include "common/json.h"
#include "common/status.h"

namespace keel {

// What becomes of an integer that neither int64 nor uint64 holds. transformers writes 10^30 as the
// model_max_length of a tokenizer that has none.
enum class WideIntegers { kRefused, kNearestDouble };

// ParseJson's contract, but for such integers.
Result<Json> BuildJson(std::string_view text, std::string_view where, const JsonLimits& limits,
                       WideIntegers wide);

}  // namespace keel
