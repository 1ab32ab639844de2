// MergeAdapters: a model's directory with adapters (LoRA) added to its weights, a few rows at a
// time.
#pragma once

#include <cstdint>
#include <functional>
#include <string>

#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"
#include "tools/inference/named_model.h"

namespace keel::tools {

struct MergeOptions {
  int threads = 2;  // that multiply
  // Called with the bytes of weights that were dealt with, and all; may be empty.
  std::function<void(int64_t done, int64_t total)> progress;
};

// `model` has adapters, `base` is the opened directory of what they stand beside. Makes the
// directory `name` of `out`, which must not exist, whole or not at all: the base's files, with
// W + scale B A for each weight W that has an adapter, computed in fp32 and rounded to W's type
// (bf16 keeps 8 bits of it: what is smaller than that of an update is lost), and of a step of a run
// its tokenizer. Returns how many weights changed. Memory: the adapters, and a few megabytes.
// kConfig where the base is not what they were trained beside, as far as that is known.
Result<int64_t> MergeAdapters(const NamedModel& model, const FileSystem& base, FileSystem& out,
                              const std::string& name, const MergeOptions& options, Logger& log);

}  // namespace keel::tools
