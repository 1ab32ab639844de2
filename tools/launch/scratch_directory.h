// ScratchDirectory: a directory for the ranks' small files, below $TMPDIR or /tmp.
//
// Gone when the launcher ends. That of one that was killed goes when the next launcher starts: each
// holds a lock on a file in its own, which ends with it.
#pragma once

#include <memory>
#include <string>
#include <utility>

#include "common/files/file_system.h"
#include "common/status.h"

namespace keel::tools {

class ScratchDirectory {
 public:
  static Result<std::unique_ptr<ScratchDirectory>> Make();
  ~ScratchDirectory();
  // The path of a file of this name.
  std::string File(const std::string& name) const { return base_->Describe(name_ + "/" + name); }

 private:
  static Result<std::unique_ptr<ScratchDirectory>> MakeOnce();
  ScratchDirectory(std::unique_ptr<FileSystem> base, std::string name)
      : base_(std::move(base)), name_(std::move(name)) {}

  const std::unique_ptr<FileSystem> base_;
  const std::string name_;
  std::shared_ptr<void> lock_;
};

}  // namespace keel::tools
