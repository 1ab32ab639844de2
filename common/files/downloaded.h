// What lies in the place of a file that a download did not bring: a pointer of Git LFS, which a
// clone without `git lfs` has, a page of a web site that wanted a login or knew no such file, or
// nothing.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

#include "common/files/file_system.h"
#include "common/status.h"

namespace keel {

// kInvalidData when `begin`, the first bytes of the file `where`, are such a thing's, with the way
// to the real file. Nothing of a file that may be empty.
Status CheckDownloaded(std::string_view begin, std::string_view where);

// ReadFile, of one that users bring and that may be empty, as a template may.
Result<std::string> ReadDownloadedOrEmpty(const FileSystem& fs, std::string_view path,
                                          int64_t max_bytes);
// The same, of one that a model has and that is never empty.
Result<std::string> ReadDownloaded(const FileSystem& fs, std::string_view path, int64_t max_bytes);

}  // namespace keel
