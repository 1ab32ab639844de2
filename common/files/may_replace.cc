#include "common/files/may_replace.h"

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <system_error>

namespace keel {

Status MayReplace(const std::string& path, std::string_view begins) {
  std::error_code error;
  const std::filesystem::file_status found = std::filesystem::status(path, error);
  if (!std::filesystem::exists(found)) return Status::Ok();
  if (!std::filesystem::is_regular_file(found)) {
    return Status(StatusCode::kCannotCreate,
                  fmt::format("{} is {}, and a whole file would take its place: name a file", path,
                              std::filesystem::is_directory(found) ? "a directory"
                              : std::filesystem::is_fifo(found)    ? "a pipe"
                                                                   : "a device or a socket"));
  }
  if (std::filesystem::file_size(path, error) == 0) return Status::Ok();
  std::ifstream file(path, std::ios::binary);
  std::string start(begins.size(), '\0');
  file.read(start.data(), static_cast<std::streamsize>(start.size()));
  if (file && start == begins) return Status::Ok();
  return Status(StatusCode::kCannotCreate,
                path + " is there, and is none of this command's: name another file");
}

}  // namespace keel
