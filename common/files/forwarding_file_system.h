// ForwardingFileSystem: passes every call on to another file system, for those that change or watch
// a few of them.
//
// It has no write queue: the one below does not know files that an heir has wrapped. Thread-safe
// like the one below it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/files/file_system.h"

namespace keel {

class ForwardingFile : public File {
 public:
  explicit ForwardingFile(std::unique_ptr<File> below) : below_(std::move(below)) {}

  Status WriteAt(int64_t offset, std::span<const std::byte> data) override {
    return below_->WriteAt(offset, data);
  }
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    return below_->ReadAt(offset, data);
  }
  void Prefetch(int64_t offset, int64_t bytes) const override { below_->Prefetch(offset, bytes); }
  void DropCached() const override { below_->DropCached(); }
  Status Truncate(int64_t size) override { return below_->Truncate(size); }
  Status Sync() override { return below_->Sync(); }
  Status Close() override { return below_->Close(); }
  Result<int64_t> Size() const override { return below_->Size(); }

 private:
  const std::unique_ptr<File> below_;
};

class ForwardingFileSystem : public FileSystem {
 public:
  // `below` must outlive this and the files that are opened through it.
  explicit ForwardingFileSystem(FileSystem& below) : below_(below) {}

  Result<std::unique_ptr<File>> Create(std::string_view path,
                                       const CreateOptions& options) override {
    return below_.Create(path, options);
  }
  Result<std::unique_ptr<File>> Open(std::string_view path) const override {
    return below_.Open(path);
  }
  Status Append(std::string_view path, std::string_view content) override {
    return below_.Append(path, content);
  }
  Status Rename(std::string_view from, std::string_view to, RenameMode mode) override {
    return below_.Rename(from, to, mode);
  }
  Status Remove(std::string_view path) override { return below_.Remove(path); }
  Status MakeDirectory(std::string_view path) override { return below_.MakeDirectory(path); }
  Result<std::vector<FileInfo>> List(std::string_view path) const override {
    return below_.List(path);
  }
  Status SyncDirectory(std::string_view path) override { return below_.SyncDirectory(path); }
  Result<FileInfo> Stat(std::string_view path) const override { return below_.Stat(path); }
  Result<int64_t> FreeBytes() const override { return below_.FreeBytes(); }
  Result<std::shared_ptr<void>> Lock(std::string_view path, std::string_view holder) override {
    return below_.Lock(path, holder);
  }
  Result<std::shared_ptr<void>> LockFile(std::string_view path, LockMode mode) const override {
    return below_.LockFile(path, mode);
  }
  std::string Describe(std::string_view path) const override { return below_.Describe(path); }

 protected:
  FileSystem& below() const { return below_; }

 private:
  FileSystem& below_;
};

}  // namespace keel
