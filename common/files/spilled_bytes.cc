#include "common/files/spilled_bytes.h"

#include <fcntl.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <cstdlib>

namespace keel {

namespace {

Result<PosixFile> MakeFile(const std::string& folder) {
  const std::string name = folder + "/(a file without a name)";
  Descriptor fd(
      Retry([&] { return ::open(folder.c_str(), O_TMPFILE | O_RDWR | O_CLOEXEC, 0600); }));
  // Not every file system has such files: then it has a name for as long as it takes to drop it.
  if (!fd.valid() && (errno == EOPNOTSUPP || errno == EISDIR || errno == ENOENT)) {
    std::string path = folder + "/.keel-rows-XXXXXX";
    fd = Descriptor(::mkostemp(path.data(), O_CLOEXEC));
    if (fd.valid()) (void)::unlink(path.c_str());
  }
  if (!fd.valid()) return Status::FromErrno(errno, "create", name);
  return PosixFile(std::move(fd), name);
}

}  // namespace

Status SpilledBytes::Append(std::span<const std::byte> bytes) {
  if (tail_.size() + bytes.size() < kHeld) {
    tail_.insert(tail_.end(), bytes.begin(), bytes.end());
    return Status::Ok();
  }
  if (!file_) {
    KEEL_ASSIGN_OR_RETURN(PosixFile made, MakeFile(folder_));
    file_.emplace(std::move(made));
  }
  KEEL_RETURN_IF_ERROR(file_->WriteAt(written_, tail_));
  KEEL_RETURN_IF_ERROR(file_->WriteAt(size(), bytes));
  written_ += std::ssize(tail_) + std::ssize(bytes);
  tail_.clear();
  return Status::Ok();
}

Status SpilledBytes::Read(int64_t begin, std::span<std::byte> bytes) const {
  while (!bytes.empty() && begin < written_) {
    const auto from_file =
        static_cast<size_t>(std::min(std::ssize(bytes) + begin, written_) - begin);
    KEEL_ASSIGN_OR_RETURN(const int64_t got, file_->ReadAt(begin, bytes.first(from_file)));
    if (got == 0) return Status(StatusCode::kDataLoss, file_->name() + " has become shorter");
    bytes = bytes.subspan(static_cast<size_t>(got));
    begin += got;
  }
  if (bytes.empty()) return Status::Ok();
  std::copy_n(tail_.begin() + (begin - written_), bytes.size(), bytes.begin());
  return Status::Ok();
}

Status SpilledBytes::Clear() {
  tail_.clear();
  if (written_ == 0) return Status::Ok();
  written_ = 0;
  return file_->Truncate(0);
}

}  // namespace keel
