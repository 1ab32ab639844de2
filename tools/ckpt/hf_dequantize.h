// DequantizeHf: a Hugging Face model directory whose weights are quantized becomes one that can be
// trained, a piece of a tensor at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"
#include "common/tensors/dtype.h"

namespace keel::tools {

struct DequantizeOptions {
  DType dtype = DType::kBF16;  // or kF32, of what was quantized; the rest keeps its own
  // Called after each piece with the bytes of tensors that are written, and all; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct Dequantized {
  std::string method;     // as config.json calls it
  int64_t tensors = 0;    // that were written
  int64_t quantized = 0;  // of these
  int64_t left_out = 0;   // scales of activations, which no weight is made of
};

// Reads `source` (model/config/quantization.h says what is understood) and makes the directory
// `name` of `out`, which must not exist, whole or not at all: the weights in files of the same
// names, config.json without quantization_config, and files that are no weights as they are, but no
// folders. A value is the product of element and scale in fp32, rounded to the dtype. Memory: the
// scales of a tensor and a few megabytes of it, or one expert's matrix. kInvalidData names the key
// or the tensor that is wrong.
Result<Dequantized> DequantizeHf(const FileSystem& source, FileSystem& out, const std::string& name,
                                 const DequantizeOptions& options, Logger& log);

}  // namespace keel::tools
