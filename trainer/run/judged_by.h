// What a checkpoint's metric depends on beside the weights: the rows of a validation and the
// rewards that score them. Values of others cannot be compared with it. Torch-free.
#pragma once

#include <string>

#include "common/files/file_system.h"
#include "trainer/run/run_state.h"

namespace keel::trainer {

// Those of what a run reads that a validation's value depends on.
ReadContents JudgedByOf(const ReadContents& read);
// The same of a checkpoint in `files`, as its data_state.json says it; nothing where it does not.
ReadContents JudgedByOf(const FileSystem& files, const std::string& directory);
// Whether the two are the same, as far as both say it.
bool JudgedAlike(const ReadContents& one, const ReadContents& other);

}  // namespace keel::trainer
