#include "common/files/lfs_pointer.h"

#include <fmt/format.h>

namespace keel {

bool IsLfsPointer(std::string_view begin) {
  return begin.starts_with("version https://git-lfs.github.com/spec/");
}

Status IsOnlyLfsPointer(std::string_view where) {
  return {
      StatusCode::kInvalidData,
      fmt::format("{}: is a pointer of Git LFS, in the place of the file itself: `git lfs pull` "
                  "in its folder, or `hf download`, brings that",
                  where)};
}

}  // namespace keel
