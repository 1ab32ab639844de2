// TailedFile: the lines that are added to a file, as they come. Torch-free.
//
// A line is handed out once it is whole. Where the file is replaced, cut short or written over, as
// a run does with its metrics when it goes on from an earlier step, it is read from its beginning
// again. Not thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <string>
#include <string_view>

#include "common/status.h"

namespace keel::tools {

class TailedFile {
 public:
  explicit TailedFile(std::string path) : path_(std::move(path)) {}

  // Calls `anew` if what was handed out before is no more, then `line` for each whole line. Returns
  // whether either was called. kNotFound: there is no such file (any more).
  Result<bool> Read(const std::function<void()>& anew,
                    const std::function<void(std::string_view)>& line);
  // What stands after the last whole line.
  const std::string& rest() const { return rest_; }

 private:
  // Whether the file still begins with what was read, as far as its end tells.
  bool Continues(int fd, int64_t size) const;

  const std::string path_;
  int64_t device_ = -1, inode_ = -1;
  int64_t offset_ = 0;  // up to which it was read
  std::string last_;    // bytes before that
  std::string rest_;
};

}  // namespace keel::tools
