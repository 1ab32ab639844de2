// ViewFileSystem: one rank's view of a disk that it shares with others.
//
// Passes everything on, counts the bytes that are read, and can show something else than there is,
// as network file systems do. Thread-safe.
#pragma once

#include <algorithm>
#include <atomic>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/file_system.h"

namespace keel::checkpoint::testing {

class ViewFileSystem : public FileSystem {
 public:
  explicit ViewFileSystem(FileSystem& disk) : disk_(disk) {}

  // Bytes read so far, by path.
  std::map<std::string, int64_t> reads() const {
    const std::lock_guard lock(mutex_);
    return reads_;
  }
  int64_t bytes_read(std::string_view suffix) const {
    int64_t sum = 0;
    for (const auto& [path, bytes] : reads()) {
      if (path.ends_with(suffix)) sum += bytes;
    }
    return sum;
  }
  // How often Stat was asked.
  int64_t stats() const { return stats_.load(); }
  // Says, by path, whether this rank sees it. Hidden files and directories are not found.
  void SetHidden(std::function<bool(std::string_view)> hidden) { hidden_ = std::move(hidden); }
  // Changes what a read of a path at an offset returns.
  using Change = std::function<void(std::string_view path, int64_t offset, std::span<std::byte>)>;
  void SetChange(Change change) { change_ = std::move(change); }
  // What a path is read as, instead of what it names.
  void SetAlias(std::function<std::string(std::string_view)> alias) { alias_ = std::move(alias); }

  Result<std::unique_ptr<File>> Create(std::string_view path,
                                       const CreateOptions& options) override {
    return disk_.Create(path, options);
  }
  Result<std::unique_ptr<File>> Open(std::string_view path) const override {
    KEEL_RETURN_IF_ERROR(See(path));
    const std::string target = alias_ ? alias_(path) : std::string(path);
    KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, disk_.Open(target));
    return std::unique_ptr<File>(new ViewFile(*this, std::string(path), std::move(file)));
  }
  Status Append(std::string_view path, std::string_view content) override {
    return disk_.Append(path, content);
  }
  Status Rename(std::string_view from, std::string_view to, RenameMode mode) override {
    return disk_.Rename(from, to, mode);
  }
  Status Remove(std::string_view path) override { return disk_.Remove(path); }
  Status MakeDirectory(std::string_view path) override { return disk_.MakeDirectory(path); }
  Result<std::vector<FileInfo>> List(std::string_view path) const override {
    KEEL_RETURN_IF_ERROR(See(path));
    KEEL_ASSIGN_OR_RETURN(std::vector<FileInfo> infos, disk_.List(path));
    std::erase_if(infos, [&](const FileInfo& info) {
      return !See(path == "." ? info.name : std::string(path) + "/" + info.name).ok();
    });
    return infos;
  }
  Status SyncDirectory(std::string_view path) override { return disk_.SyncDirectory(path); }
  Result<FileInfo> Stat(std::string_view path) const override {
    KEEL_RETURN_IF_ERROR(See(path));
    ++stats_;
    return disk_.Stat(alias_ ? alias_(path) : std::string(path));
  }
  Result<int64_t> FreeBytes() const override { return disk_.FreeBytes(); }
  Result<std::shared_ptr<void>> Lock(std::string_view path, std::string_view holder) override {
    return disk_.Lock(path, holder);
  }
  Result<std::shared_ptr<void>> LockFile(std::string_view path, LockMode mode) const override {
    KEEL_RETURN_IF_ERROR(See(path));
    return disk_.LockFile(alias_ ? alias_(path) : std::string(path), mode);
  }
  std::string Describe(std::string_view path) const override { return disk_.Describe(path); }

 private:
  class ViewFile : public File {
   public:
    ViewFile(const ViewFileSystem& fs, std::string path, std::unique_ptr<File> file)
        : fs_(fs), path_(std::move(path)), file_(std::move(file)) {}
    Status WriteAt(int64_t offset, std::span<const std::byte> data) override {
      return file_->WriteAt(offset, data);
    }
    Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
      Result<int64_t> got = file_->ReadAt(offset, data);
      if (!got.ok()) return got;
      if (fs_.change_) fs_.change_(path_, offset, data.first(static_cast<size_t>(*got)));
      const std::lock_guard lock(fs_.mutex_);
      fs_.reads_[path_] += *got;
      return got;
    }
    Status Truncate(int64_t size) override { return file_->Truncate(size); }
    Status Sync() override { return file_->Sync(); }
    Status Close() override { return file_->Close(); }
    Result<int64_t> Size() const override { return file_->Size(); }

   private:
    const ViewFileSystem& fs_;
    const std::string path_;
    const std::unique_ptr<File> file_;
  };

  Status See(std::string_view path) const {
    if (!hidden_ || !hidden_(path)) return Status::Ok();
    return Status(StatusCode::kNotFound, Describe(path) + ": not there");
  }

  FileSystem& disk_;
  std::function<bool(std::string_view)> hidden_;
  Change change_;
  std::function<std::string(std::string_view)> alias_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, int64_t> reads_;
  mutable std::atomic<int64_t> stats_{0};
};

}  // namespace keel::checkpoint::testing
