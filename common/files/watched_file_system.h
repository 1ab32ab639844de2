// WatchedFileSystem: a file system that says when the disk has answered.
//
// Passes everything on, and calls back after each call that may have had to wait for the disk,
// whatever came of it. For files written in bulk there are WriteHooks: what is opened here cannot
// be given to a write queue. Thread-safe like the one below it.
#pragma once

#include <functional>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/forwarding_file_system.h"

namespace keel {

class WatchedFileSystem final : public ForwardingFileSystem {
 public:
  // `fs` must outlive this and the files that are opened through it.
  WatchedFileSystem(FileSystem& fs, std::function<void()> answered)
      : ForwardingFileSystem(fs), answered_(std::move(answered)) {}

  Result<std::unique_ptr<File>> Create(std::string_view path,
                                       const CreateOptions& options) override;
  Result<std::unique_ptr<File>> Open(std::string_view path) const override;
  Status Append(std::string_view path, std::string_view content) override;
  Status Rename(std::string_view from, std::string_view to, RenameMode mode) override;
  Status Remove(std::string_view path) override;
  Status MakeDirectory(std::string_view path) override;
  Result<std::vector<FileInfo>> List(std::string_view path) const override;
  Status SyncDirectory(std::string_view path) override;
  Result<FileInfo> Stat(std::string_view path) const override;

 private:
  class WatchedFile;

  template <typename T>
  T Answered(T outcome) const {
    answered_();
    return outcome;
  }

  const std::function<void()> answered_;
};

}  // namespace keel
