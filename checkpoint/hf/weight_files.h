// The files that hold the weights of a Hugging Face directory.
#pragma once

#include <map>
#include <set>
#include <string>
#include <string_view>

#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::checkpoint {

inline constexpr std::string_view kWeightsName = "model.safetensors";
inline constexpr std::string_view kWeightsIndexName = "model.safetensors.index.json";

struct WeightFiles {
  std::set<std::string> names;  // plain names in the directory, which are there
  // Which of them each tensor is in, as the index says; empty where there is none.
  std::map<std::string, std::string> places;
};

// model.safetensors alone where it is there, else what model.safetensors.index.json names.
// kNotFound says what the directory has instead; kInvalidData for an index that is none.
Result<WeightFiles> FindWeightFiles(const FileSystem& fs, const std::string& directory);

}  // namespace keel::checkpoint
