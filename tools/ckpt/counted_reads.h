// CountedReads: a file system that tells a progress bar of what is read. Torch-free.
#pragma once

#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/file_system.h"
#include "common/progress.h"

namespace keel::tools {

// For reading: it refuses nothing, but writes are not counted. Thread-safe like the one below it.
class CountedReads final : public FileSystem {
 public:
  // Both must outlive this and the files that are opened through it.
  CountedReads(FileSystem& fs, Progress& bar) : fs_(fs), bar_(bar) {}

  Result<std::unique_ptr<File>> Create(std::string_view path,
                                       const CreateOptions& options) override {
    return fs_.Create(path, options);
  }
  Result<std::unique_ptr<File>> Open(std::string_view path) const override;
  Status Append(std::string_view path, std::string_view content) override {
    return fs_.Append(path, content);
  }
  Status Rename(std::string_view from, std::string_view to, RenameMode mode) override {
    return fs_.Rename(from, to, mode);
  }
  Status Remove(std::string_view path) override { return fs_.Remove(path); }
  Status MakeDirectory(std::string_view path) override { return fs_.MakeDirectory(path); }
  Result<std::vector<FileInfo>> List(std::string_view path) const override {
    return fs_.List(path);
  }
  Status SyncDirectory(std::string_view path) override { return fs_.SyncDirectory(path); }
  Result<FileInfo> Stat(std::string_view path) const override { return fs_.Stat(path); }
  Result<int64_t> FreeBytes() const override { return fs_.FreeBytes(); }
  Result<std::shared_ptr<void>> Lock(std::string_view path, std::string_view holder) override {
    return fs_.Lock(path, holder);
  }
  Result<std::shared_ptr<void>> LockFile(std::string_view path, LockMode mode) const override {
    return fs_.LockFile(path, mode);
  }
  std::string Describe(std::string_view path) const override { return fs_.Describe(path); }

 private:
  FileSystem& fs_;
  Progress& bar_;
};

// A bar of bytes on the standard error of the program.
Progress::Options BytesBar(std::string what, int64_t total);

}  // namespace keel::tools
