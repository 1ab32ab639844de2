#include "common/watched_file_system.h"

#include <utility>

namespace keel {

class WatchedFileSystem::WatchedFile final : public File {
 public:
  WatchedFile(const WatchedFileSystem& fs, std::unique_ptr<File> file)
      : fs_(fs), file_(std::move(file)) {}

  Status WriteAt(int64_t offset, std::span<const std::byte> data) override {
    return fs_.Answered(file_->WriteAt(offset, data));
  }
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    return fs_.Answered(file_->ReadAt(offset, data));
  }
  void Prefetch(int64_t offset, int64_t bytes) const override { file_->Prefetch(offset, bytes); }
  void DropCached() const override { file_->DropCached(); }
  Status Truncate(int64_t size) override { return fs_.Answered(file_->Truncate(size)); }
  Status Sync() override { return fs_.Answered(file_->Sync()); }
  Status Close() override { return fs_.Answered(file_->Close()); }
  Result<int64_t> Size() const override { return file_->Size(); }

 private:
  const WatchedFileSystem& fs_;
  const std::unique_ptr<File> file_;
};

Result<std::unique_ptr<File>> WatchedFileSystem::Create(std::string_view path,
                                                        const CreateOptions& options) {
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, Answered(fs_.Create(path, options)));
  return std::unique_ptr<File>(new WatchedFile(*this, std::move(file)));
}

Result<std::unique_ptr<File>> WatchedFileSystem::Open(std::string_view path) const {
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, Answered(fs_.Open(path)));
  return std::unique_ptr<File>(new WatchedFile(*this, std::move(file)));
}

Status WatchedFileSystem::Append(std::string_view path, std::string_view content) {
  return Answered(fs_.Append(path, content));
}

Status WatchedFileSystem::Rename(std::string_view from, std::string_view to, RenameMode mode) {
  return Answered(fs_.Rename(from, to, mode));
}

Status WatchedFileSystem::Remove(std::string_view path) { return Answered(fs_.Remove(path)); }

Status WatchedFileSystem::MakeDirectory(std::string_view path) {
  return Answered(fs_.MakeDirectory(path));
}

Result<std::vector<FileInfo>> WatchedFileSystem::List(std::string_view path) const {
  return Answered(fs_.List(path));
}

Status WatchedFileSystem::SyncDirectory(std::string_view path) {
  return Answered(fs_.SyncDirectory(path));
}

Result<FileInfo> WatchedFileSystem::Stat(std::string_view path) const {
  return Answered(fs_.Stat(path));
}

}  // namespace keel
