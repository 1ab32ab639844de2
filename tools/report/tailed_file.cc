#include "tools/report/tailed_file.h"

#include <fcntl.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <vector>

#include "common/files/posix_file.h"

namespace keel::tools {

namespace {

constexpr size_t kPiece = size_t{1} << 20;
constexpr size_t kRemembered = 64;  // bytes by which a file is known again

}  // namespace

bool TailedFile::Continues(int fd, int64_t size) const {
  if (size < offset_) return false;
  std::string there(last_.size(), '\0');
  const auto begin = static_cast<off_t>(offset_ - static_cast<int64_t>(last_.size()));
  const ssize_t got = Retry([&] { return ::pread(fd, there.data(), there.size(), begin); });
  return got == static_cast<ssize_t>(there.size()) && there == last_;
}

Result<bool> TailedFile::Read(const std::function<void()>& anew,
                              const std::function<void(std::string_view)>& line) {
  const Descriptor fd(
      Retry([&] { return ::open(path_.c_str(), O_RDONLY | O_CLOEXEC | O_NONBLOCK); }));
  if (!fd.valid()) return Status::FromErrno(errno, "open", path_);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "stat", path_);
  if (!S_ISREG(info.st_mode))
    return Status(StatusCode::kInvalidData, path_ + ": expected a regular file");
  const auto device = static_cast<int64_t>(info.st_dev), inode = static_cast<int64_t>(info.st_ino);
  bool called = false;
  if (inode_ >= 0 && (device != device_ || inode != inode_ || !Continues(fd.get(), info.st_size))) {
    anew();
    called = true;
    offset_ = 0;
    last_.clear();
    rest_.clear();
  }
  device_ = device;
  inode_ = inode;
  std::vector<char> piece(kPiece);
  while (true) {
    const ssize_t got =
        Retry([&] { return ::pread(fd.get(), piece.data(), piece.size(), offset_); });
    if (got < 0) return Status::FromErrno(errno, "read", path_);
    if (got == 0) return called;
    const std::string_view text(piece.data(), static_cast<size_t>(got));
    offset_ += got;
    last_ += text.substr(text.size() - std::min(text.size(), kRemembered));
    last_.erase(0, last_.size() - std::min(last_.size(), kRemembered));
    size_t begin = 0;
    for (size_t end = 0; (end = text.find('\n', begin)) != std::string_view::npos;
         begin = end + 1) {
      rest_ += text.substr(begin, end - begin);
      line(rest_);
      called = true;
      rest_.clear();
    }
    rest_ += text.substr(begin);
  }
}

}  // namespace keel::tools
