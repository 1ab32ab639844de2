#include "trainer/metrics/append_file.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/stat.h>
#include <unistd.h>

#include <cerrno>
#include <utility>

namespace keel::trainer {

Status AppendFile::Open() {
  Descriptor fd(Retry([&] {
    return ::open(path_.c_str(), O_WRONLY | O_APPEND | O_CREAT | O_CLOEXEC | O_NONBLOCK, 0666);
  }));
  if (!fd.valid()) return Status::FromErrno(errno, "open", path_);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "stat", path_);
  if (!S_ISREG(info.st_mode))
    return Status(StatusCode::kIo, fmt::format("open {}: not a regular file", path_));
  fd_ = std::move(fd);
  return Status::Ok();
}

Status AppendFile::Append(std::string_view piece) {
  if (!fd_.valid()) KEEL_RETURN_IF_ERROR(Open());
  const off_t end = ::lseek(fd_.get(), 0, SEEK_END);
  size_t written = 0;
  int error = 0;
  while (written < piece.size() && error == 0) {
    const std::string_view rest = piece.substr(written);
    const ssize_t now = Retry([&] { return ::write(fd_.get(), rest.data(), rest.size()); });
    error = now < 0 ? errno : now == 0 ? ENOSPC : 0;
    if (now > 0) written += static_cast<size_t>(now);
  }
  if (error == 0) return Status::Ok();
  // What a full disk took of the piece is taken back.
  if (end >= 0 && written > 0) (void)!::ftruncate(fd_.get(), end);
  return Status::FromErrno(error, "write", path_);
}

bool AppendFile::Write(int64_t step, std::string_view piece) {
  const Status status = Append(piece);
  ++all_;
  if (status.ok()) {
    if (lost_in_row_ > 0) {
      log_->Warning("{}: can be written again; {} {} before this were lost", path_, lost_in_row_,
                    pieces_);
    }
    lost_in_row_ = 0;
    return true;
  }
  because_ = status.message();
  ++lost_;
  if (++lost_in_row_ == 1)
    log_->Warning("metrics are being lost from step {} on: {}", step, because_);
  return false;
}

void AppendFile::Close() {
  if (lost_ == 0) return;
  log_->Warning("{} of the {} {} that this run had for {} were lost: {}", lost_, all_, pieces_,
                path_, because_);
  lost_ = 0;
}

}  // namespace keel::trainer
