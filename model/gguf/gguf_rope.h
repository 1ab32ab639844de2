// How a GGUF file says that positions turn queries and keys, in config.json.
#pragma once

#include <cstdint>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/gguf/gguf_keys.h"

namespace keel::model {

// The tensors that hold factors of a rotation, [turned dims / 2]: what they say becomes keys of
// config.json, and no tensor of the model.
inline constexpr std::string_view kRopeFactors = "rope_freqs.weight";
inline constexpr std::string_view kLongRopeFactors = "rope_factors_long.weight";
inline constexpr std::string_view kShortRopeFactors = "rope_factors_short.weight";
inline constexpr std::string_view kScaledTensors[] = {kRopeFactors};
inline constexpr std::string_view kLongropeTensors[] = {kLongRopeFactors, kShortRopeFactors};

// Their values, each empty where the file has no such tensor.
struct GgufRopeFactors {
  std::vector<float> scaled = {};              // kRopeFactors: what Llama 3's scaling gave
  std::vector<float> longs = {}, shorts = {};  // longrope's, past and within the original context
};

struct GgufRotation {
  int64_t head_dim = 0;
  int64_t positions = 0;  // of the stretched context
  const GgufRopeFactors& factors;
};

// One rotation of all layers: `rope_theta`, and `rope_scaling` where it is stretched. Llama 3's
// parameters are found again from what they gave. kInvalidData names the key or the tensor.
Status ReadGgufRope(GgufKeys& keys, const GgufRotation& rotation, Json* config);
// The same as `rope_parameters`, with a second rotation, never stretched, of layers with a window.
Status ReadGgufTwoRopes(GgufKeys& keys, const GgufRotation& rotation, Json* config);
// Phi-3's: a part of each head may turn, and the context is stretched by two lists of factors.
Status ReadGgufPhiRope(GgufKeys& keys, const GgufRotation& rotation, Json* config);

}  // namespace keel::model
