#include "common/files/watched_file_system.h"

#include <utility>

namespace keel {

class WatchedFileSystem::WatchedFile final : public ForwardingFile {
 public:
  WatchedFile(const WatchedFileSystem& fs, std::unique_ptr<File> file)
      : ForwardingFile(std::move(file)), fs_(fs) {}

  Status WriteAt(int64_t offset, std::span<const std::byte> data) override {
    return fs_.Answered(ForwardingFile::WriteAt(offset, data));
  }
  Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const override {
    return fs_.Answered(ForwardingFile::ReadAt(offset, data));
  }
  Status Truncate(int64_t size) override { return fs_.Answered(ForwardingFile::Truncate(size)); }
  Status Sync() override { return fs_.Answered(ForwardingFile::Sync()); }
  Status Close() override { return fs_.Answered(ForwardingFile::Close()); }

 private:
  const WatchedFileSystem& fs_;
};

Result<std::unique_ptr<File>> WatchedFileSystem::Create(std::string_view path,
                                                        const CreateOptions& options) {
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, Answered(below().Create(path, options)));
  return std::unique_ptr<File>(new WatchedFile(*this, std::move(file)));
}

Result<std::unique_ptr<File>> WatchedFileSystem::Open(std::string_view path) const {
  KEEL_ASSIGN_OR_RETURN(std::unique_ptr<File> file, Answered(below().Open(path)));
  return std::unique_ptr<File>(new WatchedFile(*this, std::move(file)));
}

Status WatchedFileSystem::Append(std::string_view path, std::string_view content) {
  return Answered(below().Append(path, content));
}

Status WatchedFileSystem::Rename(std::string_view from, std::string_view to, RenameMode mode) {
  return Answered(below().Rename(from, to, mode));
}

Status WatchedFileSystem::Remove(std::string_view path) { return Answered(below().Remove(path)); }

Status WatchedFileSystem::MakeDirectory(std::string_view path) {
  return Answered(below().MakeDirectory(path));
}

Result<std::vector<FileInfo>> WatchedFileSystem::List(std::string_view path) const {
  return Answered(below().List(path));
}

Status WatchedFileSystem::SyncDirectory(std::string_view path) {
  return Answered(below().SyncDirectory(path));
}

Result<FileInfo> WatchedFileSystem::Stat(std::string_view path) const {
  return Answered(below().Stat(path));
}

}  // namespace keel
