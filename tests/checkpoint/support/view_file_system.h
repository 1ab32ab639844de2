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

#include "common/files/forwarding_file_system.h"

namespace keel::checkpoint::testing {

class ViewFileSystem : public ForwardingFileSystem {
 public:
  explicit ViewFileSystem(FileSystem& disk) : ForwardingFileSystem(disk) {}

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

  Result<std::unique_ptr<File>> Open(std::string_view path) const override {
    KEEL_RETURN_IF_ERROR(See(path));
    const std::string target = alias_ ? alias_(path) : std::string(path);
    KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, below().Open(target));
    return std::unique_ptr<File>(new ViewFile(*this, std::string(path), std::move(file)));
  }
  Result<std::vector<FileInfo>> List(std::string_view path) const override {
    KEEL_RETURN_IF_ERROR(See(path));
    KEEL_ASSIGN_OR_RETURN(std::vector<FileInfo> infos, below().List(path));
    std::erase_if(infos, [&](const FileInfo& info) {
      return !See(path == "." ? info.name : std::string(path) + "/" + info.name).ok();
    });
    return infos;
  }
  Result<FileInfo> Stat(std::string_view path) const override {
    KEEL_RETURN_IF_ERROR(See(path));
    ++stats_;
    return below().Stat(alias_ ? alias_(path) : std::string(path));
  }
  Result<std::shared_ptr<void>> LockFile(std::string_view path, LockMode mode) const override {
    KEEL_RETURN_IF_ERROR(See(path));
    return below().LockFile(alias_ ? alias_(path) : std::string(path), mode);
  }

 private:
  class ViewFile : public ForwardingFile {
   public:
    ViewFile(const ViewFileSystem& fs, std::string path, std::unique_ptr<File> file)
        : ForwardingFile(std::move(file)), fs_(fs), path_(std::move(path)) {}
    Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
      Result<int64_t> got = ForwardingFile::ReadAt(offset, data);
      if (!got.ok()) return got;
      if (fs_.change_) fs_.change_(path_, offset, data.first(static_cast<size_t>(*got)));
      const std::lock_guard lock(fs_.mutex_);
      fs_.reads_[path_] += *got;
      return got;
    }

   private:
    const ViewFileSystem& fs_;
    const std::string path_;
  };

  Status See(std::string_view path) const {
    if (!hidden_ || !hidden_(path)) return Status::Ok();
    return Status(StatusCode::kNotFound, Describe(path) + ": not there");
  }

  std::function<bool(std::string_view)> hidden_;
  Change change_;
  std::function<std::string(std::string_view)> alias_;
  mutable std::mutex mutex_;
  mutable std::map<std::string, int64_t> reads_;
  mutable std::atomic<int64_t> stats_{0};
};

}  // namespace keel::checkpoint::testing
