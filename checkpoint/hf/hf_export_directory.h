// A whole Hugging Face directory from a checkpoint: weights, configuration, tokenizer.
#pragma once

#include <string>

#include "checkpoint/hf/hf_export.h"
#include "checkpoint/read/step_reader.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

// Exports a role of a checkpoint to a directory that must not exist: weights, config.json and the
// tokenizer's files; of a role with adapters these, as PEFT writes them, without config.json. It
// appears under its name when it is complete. What exports to the same name left beside it when
// they were killed is removed, other than what one is writing.
Status ExportHuggingFace(const StepReader& reader, const std::string& role, FileSystem& out,
                         const std::string& name, const HfExportOptions& options, Logger& log);

}  // namespace keel::checkpoint
