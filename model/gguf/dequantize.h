// Dequantize: the values of GGUF's blocks as float32, bit for bit those of gguf-py.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

#include "model/gguf/ggml_type.h"

namespace keel::model {

// `blocks` holds whole blocks of `type`; `values` as many values as they have.
void Dequantize(GgmlType type, std::span<const std::byte> blocks, std::span<float> values);

}  // namespace keel::model
