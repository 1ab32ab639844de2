// Where a directory of Hugging Face keeps chat templates beside its first one.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "common/files/file_system.h"
#include "common/status.h"

namespace keel {

inline constexpr std::string_view kMoreTemplates = "additional_chat_templates";

// The templates of that folder, sorted: "additional_chat_templates/tool_use.jinja". None where
// there is no such folder.
Result<std::vector<std::string>> MoreTemplateFiles(const FileSystem& fs);

// Writes `directory`/`name` durably, `name` a file of the directory or one of those; their folder
// is made where it is not there.
Status WriteModelText(FileSystem& fs, const std::string& directory, std::string_view name,
                      std::string_view text);

}  // namespace keel
