// What a checkpoint of the library holds, as rank 0 reads it and tells all ranks. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "checkpoint/format/save_records.h"
#include "checkpoint/read/step_reader.h"
#include "common/files/file_system.h"
#include "common/status.h"
#include "library/state.h"

namespace keel::library {

// The encoded description, with the newer ones that were `skipped`. kConfig where a trainer saved
// it.
Result<std::string> DescribeCheckpoint(const FileSystem& files,
                                       const checkpoint::StepReader& reader,
                                       std::span<const checkpoint::SkippedCheckpoint> skipped);
// `status`, of a step that cannot be read, or kNotFound with those that there are.
Status NameMissing(const FileSystem& files, int64_t step, const Status& status);
// kInternal for any other text.
Result<StateDescription> DecodeDescription(std::string_view text);

}  // namespace keel::library
