// GgufImport: a GGUF file becomes a Hugging Face model directory, a piece of a tensor at a time.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>

#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"
#include "common/tensors/dtype.h"

namespace keel::tools {

struct GgufImportOptions {
  // kF32 or kBF16. Nothing: BF16 of a quantized file and of one in BF16, F32 of others, which loses
  // nothing.
  std::optional<DType> dtype;
  bool tokenizer_only = false;  // of a vocabulary without a model, too
  // Called after each piece with the bytes of tensors that are done, and all; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

struct GgufImported {
  int64_t tensors = 0;
  int64_t values = 0;
  DType dtype = DType::kBF16;
  int64_t tokens = 0;
};

// Reads `file` of `source` and makes the directory `name` of `out`, which must not exist, whole or
// not at all: config.json, generation_config.json, model.safetensors, tokenizer.json,
// tokenizer_config.json and chat_template.jinja where there is one. Memory: the metadata, and a few
// megabytes of a tensor. kInvalidData names the key or the tensor that is wrong or not understood.
Result<GgufImported> ImportGguf(const FileSystem& source, const std::string& file, FileSystem& out,
                                const std::string& name, const GgufImportOptions& options,
                                Logger& log);

}  // namespace keel::tools
