// How a GGUF file says that positions are stretched, as `rope_scaling` of config.json.
#pragma once

#include <cstdint>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/gguf/gguf_keys.h"

namespace keel::model {

// Null where they are not. `factors`: of the tensor kRopeFactors, from which Llama 3's parameters
// are found again; empty where there is none.
Result<Json> ReadGgufRope(GgufKeys& keys, const std::vector<float>& factors, double theta,
                          int64_t head_dim);

}  // namespace keel::model
