// What a directory holds that is no Hugging Face model in safetensors, and the way from there.
#pragma once

#include <string>
#include <string_view>

#include "common/files/file_system.h"

namespace keel::checkpoint {

// A clause for the end of an error, such as "; pytorch_model.bin is PyTorch's: ...". "" where
// nothing in the directory says what was meant.
std::string WayFromOtherFiles(const FileSystem& fs, std::string_view directory);

}  // namespace keel::checkpoint
