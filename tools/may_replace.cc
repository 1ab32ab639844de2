#include "tools/may_replace.h"

#include <filesystem>
#include <fstream>
#include <system_error>

namespace keel::tools {

Status MayReplace(const std::string& path, std::string_view begins) {
  std::error_code error;
  if (!std::filesystem::is_regular_file(path, error) ||
      std::filesystem::file_size(path, error) == 0)
    return Status::Ok();
  std::ifstream file(path, std::ios::binary);
  std::string start(begins.size(), '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  if (file && start == begins) return Status::Ok();
  return Status(StatusCode::kCannotCreate,
                path + " is there, and is none of this command's: name another file");
}

}  // namespace keel::tools
