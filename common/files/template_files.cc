#include "common/files/template_files.h"

#include <fmt/format.h>

namespace keel {

Result<std::vector<std::string>> MoreTemplateFiles(const FileSystem& fs) {
  const Result<std::vector<FileInfo>> entries = fs.List(kMoreTemplates);
  std::vector<std::string> files;
  if (entries.status().code() == StatusCode::kNotFound) return files;
  KEEL_RETURN_IF_ERROR(entries.status());
  for (const FileInfo& entry : *entries) {
    if (entry.name.ends_with(".jinja"))
      files.push_back(fmt::format("{}/{}", kMoreTemplates, entry.name));
  }
  return files;
}

Status WriteModelText(FileSystem& fs, const std::string& directory, std::string_view name,
                      std::string_view text) {
  const std::string path = fmt::format("{}/{}", directory, name);
  if (name.find('/') == std::string_view::npos) return WriteFileDurably(fs, path, text);
  const std::string folder = path.substr(0, path.rfind('/'));
  if (const Status made = fs.MakeDirectory(folder); made.code() != StatusCode::kAlreadyExists)
    KEEL_RETURN_IF_ERROR(made);
  KEEL_RETURN_IF_ERROR(WriteFileDurably(fs, path, text));
  return fs.SyncDirectory(folder);
}

}  // namespace keel
