#include "common/files/posix_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>

namespace keel {

Descriptor& Descriptor::operator=(Descriptor&& other) noexcept {
  if (this != &other) {
    Reset();
    fd_ = std::exchange(other.fd_, -1);
  }
  return *this;
}

void Descriptor::Reset() {
  if (fd_ >= 0) ::close(fd_);
  fd_ = -1;
}

Status WroteNothing(std::string_view operation, std::string_view name, size_t bytes) {
  return Status(StatusCode::kIo,
                fmt::format("{} {}: wrote nothing of {} bytes", operation, name, bytes));
}

Status PosixFile::WriteAt(int64_t offset, std::span<const std::byte> data) {
  KEEL_RETURN_IF_ERROR(dead_);
  while (!data.empty()) {
    const size_t part = std::min(data.size(), kMaxTransfer);
    const ssize_t written = Retry([&] { return ::pwrite(fd_.get(), data.data(), part, offset); });
    if (written < 0) return Status::FromErrno(errno, "write", name_);
    if (written == 0) return WroteNothing("write", name_, part);
    data = data.subspan(static_cast<size_t>(written));
    offset += written;
  }
  return Status::Ok();
}

Result<int64_t> PosixFile::ReadAt(int64_t offset, std::span<std::byte> data) const {
  KEEL_RETURN_IF_ERROR(dead_);
  int64_t total = 0;
  while (!data.empty()) {
    const size_t part = std::min(data.size(), kMaxTransfer);
    const ssize_t got =
        Retry([&] { return ::pread(fd_.get(), data.data(), part, offset + total); });
    if (got < 0) return Status::FromErrno(errno, "read", name_);
    if (got == 0) break;
    data = data.subspan(static_cast<size_t>(got));
    total += got;
  }
  return total;
}

void PosixFile::Prefetch(int64_t offset, int64_t bytes) const {
  (void)::posix_fadvise(fd_.get(), offset, bytes, POSIX_FADV_WILLNEED);
}

void PosixFile::DropCached() const { (void)::posix_fadvise(fd_.get(), 0, 0, POSIX_FADV_DONTNEED); }

Status PosixFile::Truncate(int64_t size) {
  KEEL_RETURN_IF_ERROR(dead_);
  if (Retry([&] { return ::ftruncate(fd_.get(), size); }) != 0)
    return Status::FromErrno(errno, "truncate", name_);
  return Status::Ok();
}

Status PosixFile::Sync() {
  KEEL_RETURN_IF_ERROR(dead_);
  // No retry: after a failure the kernel has dropped what it could not write.
  if (::fsync(fd_.get()) != 0) dead_ = Status::FromErrno(errno, "fsync", name_);
  return dead_;
}

Status PosixFile::Close() {
  if (fd_.valid() && ::close(fd_.Release()) != 0 && dead_.ok())
    dead_ = Status::FromErrno(errno, "close", name_);
  return dead_;
}

Result<int64_t> PosixFile::Size() const {
  struct stat info {};
  if (::fstat(fd_.get(), &info) != 0) return Status::FromErrno(errno, "stat", name_);
  return static_cast<int64_t>(info.st_size);
}

}  // namespace keel
