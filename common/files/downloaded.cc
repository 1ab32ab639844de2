#include "common/files/downloaded.h"

#include <fmt/format.h>

#include <algorithm>
#include <cctype>

namespace keel {
namespace {

bool IsWebPage(std::string_view begin) {
  if (begin.starts_with("\xef\xbb\xbf")) begin.remove_prefix(3);
  begin.remove_prefix(std::min(begin.find_first_not_of(" \t\r\n"), begin.size()));
  const auto starts = [begin](std::string_view tag) {
    return begin.size() >= tag.size() &&
           std::equal(tag.begin(), tag.end(), begin.begin(), [](char a, char b) {
             return a == std::tolower(static_cast<unsigned char>(b));
           });
  };
  return starts("<!doctype html") || starts("<html") || starts("<?xml");
}

}  // namespace

Status CheckDownloaded(std::string_view begin, std::string_view where) {
  const auto refused = [&](std::string_view what) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, what));
  };
  if (begin.empty()) return refused("is empty: download or copy it again");
  if (begin.starts_with("version https://git-lfs.github.com/spec/")) {
    return refused(
        "is a pointer of Git LFS, in the place of the file itself: `git lfs pull` in its folder, "
        "or `hf download`, brings that");
  }
  if (IsWebPage(begin)) {
    return refused(
        "is a page of a web site, in the place of the file itself, as a site answers that wants a "
        "login or knows no such file: download it again, with `hf download` (after `hf auth "
        "login`) where it is of a hub");
  }
  return Status::Ok();
}

Result<std::string> ReadDownloadedOrEmpty(const FileSystem& fs, std::string_view path,
                                          int64_t max_bytes) {
  KEEL_ASSIGN_OR_RETURN(std::string content, ReadFile(fs, path, max_bytes));
  if (!content.empty()) KEEL_RETURN_IF_ERROR(CheckDownloaded(content, fs.Describe(path)));
  return content;
}

Result<std::string> ReadDownloaded(const FileSystem& fs, std::string_view path, int64_t max_bytes) {
  KEEL_ASSIGN_OR_RETURN(std::string content, ReadDownloadedOrEmpty(fs, path, max_bytes));
  if (content.empty()) return CheckDownloaded(content, fs.Describe(path));
  return content;
}

}  // namespace keel
