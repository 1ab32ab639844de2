#include "checkpoint/hf/weight_files.h"

#include <fmt/format.h>

#include "checkpoint/hf/other_model_files.h"
#include "common/files/downloaded.h"
#include "common/json.h"
#include "common/text.h"

namespace keel::checkpoint {

namespace {

constexpr int64_t kMaxIndexBytes = int64_t{100} << 20;

// A plain name: an index must not lead out of its directory.
bool IsPlainName(const std::string& name) {
  return !name.empty() && name != "." && name != ".." &&
         name.find_first_of("/\\") == std::string::npos && name.find('\0') == std::string::npos;
}

}  // namespace

Result<WeightFiles> FindWeightFiles(const FileSystem& fs, const std::string& directory) {
  const auto path_of = [&](std::string_view name) {
    return directory == "." ? std::string(name) : fmt::format("{}/{}", directory, name);
  };
  WeightFiles files;
  const Result<FileInfo> single = fs.Stat(path_of(kWeightsName));
  if (single.ok()) {
    files.names.emplace(kWeightsName);
    return files;
  }
  if (single.status().code() != StatusCode::kNotFound) return single.status();
  const std::string index_path = path_of(kWeightsIndexName);
  const Result<std::string> text = ReadDownloaded(fs, index_path, kMaxIndexBytes);
  if (text.status().code() == StatusCode::kNotFound) {
    return Status(
        StatusCode::kNotFound,
        fmt::format(
            "{}: has neither {} nor {}: not a Hugging Face model in the safetensors format{}",
            fs.Describe(directory), kWeightsName, kWeightsIndexName,
            WayFromOtherFiles(fs, directory)));
  }
  KEEL_RETURN_IF_ERROR(text.status());
  const std::string where = fs.Describe(index_path);
  JsonLimits limits;
  limits.max_bytes = kMaxIndexBytes;
  KEEL_ASSIGN_OR_RETURN(const Json root, ParseJson(*text, where, limits));
  if (!root.is_object() || !root.contains("weight_map") || !root.at("weight_map").is_object() ||
      root.at("weight_map").empty()) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: has no weight_map", where));
  }
  for (const auto& [tensor, file] : root.at("weight_map").items()) {
    if (!file.is_string()) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: the file of '{}' is not a name", where, Printable(tensor)));
    }
    const std::string& name = file.get_ref<const std::string&>();
    if (!IsPlainName(name)) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("{}: the file of '{}' is '{}', expected a plain file name", where,
                                Printable(tensor), Printable(name)));
    }
    files.places[tensor] = name;
    files.names.insert(name);
  }
  for (const std::string& name : files.names) {
    if (fs.Stat(path_of(name)).status().code() != StatusCode::kNotFound) continue;
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: names {}, which is not there: download it, too", where, name));
  }
  return files;
}

}  // namespace keel::checkpoint
