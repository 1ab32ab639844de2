#include "tools/row_output.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <filesystem>
#include <system_error>
#include <utility>

#include "common/files/posix_file.h"

namespace keel::tools {

namespace {

namespace fs = std::filesystem;

// What the shell has opened, under whatever name: it is written to, never replaced.
bool IsOpenedByShell(const std::string& path) {
  return path == "-" || path.starts_with("/dev/") || path.starts_with("/proc/");
}

// The same file, or the same name of one that is not there yet.
bool IsSameFile(const std::string& a, const std::string& b) {
  std::error_code error;
  if (fs::exists(a, error) && fs::exists(b, error))
    return fs::is_regular_file(a, error) && fs::equivalent(a, b, error);
  const fs::path one = fs::weakly_canonical(fs::absolute(a, error), error);
  return one == fs::weakly_canonical(fs::absolute(b, error), error);
}

// A name that is ours alone while we write: a pipe would hold us up for ever, and two writers would
// mix their rows.
Result<Descriptor> OpenTemporary(const std::string& name) {
  Descriptor fd(Retry([&] {
    return ::open(name.c_str(), O_WRONLY | O_CREAT | O_CLOEXEC | O_NONBLOCK | O_NOFOLLOW, 0666);
  }));
  if (!fd.valid()) return Status::FromErrno(errno, "open", name);
  struct stat info {};
  if (::fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "stat", name);
  if (!S_ISREG(info.st_mode)) {
    return Status(StatusCode::kCannotCreate,
                  fmt::format("{} is in the way, and is no regular file: remove it", name));
  }
  // Where there are no locks, nobody can tell.
  if (::flock(fd.get(), LOCK_EX | LOCK_NB) != 0 && errno == EWOULDBLOCK) {
    return Status(
        StatusCode::kCannotCreate,
        fmt::format("another keel is writing {}: wait for it, or name another file", name));
  }
  if (::ftruncate(fd.get(), 0) != 0) return Status::FromErrno(errno, "truncate", name);
  return fd;
}

}  // namespace

Status CheckApart(const NamedFile& written, const NamedFile& other) {
  if (written.path.empty() || other.path.empty()) return Status::Ok();
  const std::string there = other.path == "-" ? "/dev/stdin" : other.path;
  for (const std::string& path : {written.path, written.path + ".partial"}) {
    if (IsOpenedByShell(written.path) || !IsSameFile(path, there)) continue;
    return Status(StatusCode::kUsage,
                  fmt::format("{} {} would overwrite {} {}: name another file", written.flag,
                              written.path, other.flag, other.path));
  }
  return Status::Ok();
}

std::string SpillFolder(const std::string& output) {
  std::error_code error;
  if (IsOpenedByShell(output)) {
    const fs::path temporary = fs::temp_directory_path(error);
    return error ? "/tmp" : temporary.string();
  }
  fs::path folder = fs::absolute(output, error);
  while (!fs::is_directory(folder, error) && folder.has_relative_path())
    folder = folder.parent_path();
  return folder.string();
}

Result<RowOutput> RowOutput::Open(const std::string& flag, const std::string& wanted, Part part) {
  std::error_code error;
  // A link stays one: what it leads to is replaced.
  std::string path = wanted;
  if (!IsOpenedByShell(path) && fs::is_symlink(path, error) && fs::exists(path, error))
    path = fs::canonical(path, error).string();
  const fs::file_status there = fs::status(path, error);
  const auto refused = [&](const std::string& why) {
    return Status(StatusCode::kCannotCreate, fmt::format("{} {}: {}", flag, wanted, why));
  };
  if (wanted.empty()) return Status(StatusCode::kUsage, flag + ": the file's name is empty");
  if (fs::is_directory(there)) return refused("is a directory; name a file");
  const bool as_it_is = IsOpenedByShell(path) || (fs::exists(there) && !fs::is_regular_file(there));
  const std::string name = as_it_is ? path : path + ".partial";
  Descriptor fd;
  if (path == "-" || path == "/dev/stdout") {
    fd = Descriptor(::fcntl(STDOUT_FILENO, F_DUPFD_CLOEXEC, 0));
    if (!fd.valid()) return refused(Status::FromErrno(errno, "open", name).message());
  } else if (as_it_is) {
    fd = Descriptor(Retry([&] { return ::open(name.c_str(), O_WRONLY | O_CLOEXEC); }));
    if (!fd.valid()) return refused(Status::FromErrno(errno, "open", name).message());
  } else {
    Result<Descriptor> temporary = OpenTemporary(name);
    if (!temporary.ok()) return refused(temporary.status().message());
    fd = std::move(*temporary);
  }
  std::FILE* const file = ::fdopen(fd.get(), "w");
  if (file == nullptr) return refused(Status::FromErrno(errno, "open", name).message());
  fd.Release();
  return RowOutput(flag, path, name, file, part);
}

Status RowOutput::Failed(const char* operation) const {
  return Status::FromErrno(errno, operation, temporary_).WithContext(flag_);
}

Status RowOutput::Put(size_t row, std::string line) {
  line.push_back('\n');
  return PutBytes(row, std::as_bytes(std::span(line)));
}

Status RowOutput::PutBytes(size_t row, std::span<const std::byte> bytes) {
  if (row != next_) return Hold(row, bytes);
  KEEL_RETURN_IF_ERROR(Write(bytes));
  ++next_;
  for (auto first = waiting_.begin(); first != waiting_.end() && first->first == next_; ++next_) {
    KEEL_RETURN_IF_ERROR(WriteWaiting(first->second));
    first = waiting_.erase(first);
  }
  return std::fflush(file_.get()) == 0 ? Status::Ok() : Failed("write");
}

Status RowOutput::Hold(size_t row, std::span<const std::byte> bytes) {
  Waiting waiting;
  if (held_ + bytes.size() <= kHeld) {
    waiting.bytes.assign(bytes.begin(), bytes.end());
    held_ += bytes.size();
  } else {
    waiting.spilled_at = spilled_.size();
    waiting.spilled_size = std::ssize(bytes);
    KEEL_RETURN_IF_ERROR(spilled_.Append(bytes).WithContext(flag_));
    ++num_spilled_;
  }
  waiting_.emplace(row, std::move(waiting));
  return Status::Ok();
}

Status RowOutput::WriteWaiting(const Waiting& waiting) {
  held_ -= waiting.bytes.size();
  KEEL_RETURN_IF_ERROR(Write(waiting.bytes));
  if (waiting.spilled_size == 0) return Status::Ok();
  std::vector<std::byte> part(std::min(static_cast<size_t>(waiting.spilled_size), kHeld));
  for (int64_t done = 0; done < waiting.spilled_size; done += std::ssize(part)) {
    part.resize(std::min(part.size(), static_cast<size_t>(waiting.spilled_size - done)));
    KEEL_RETURN_IF_ERROR(spilled_.Read(waiting.spilled_at + done, part).WithContext(flag_));
    KEEL_RETURN_IF_ERROR(Write(part));
  }
  return --num_spilled_ == 0 ? spilled_.Clear().WithContext(flag_) : Status::Ok();
}

Status RowOutput::Write(std::span<const std::byte> bytes) {
  const size_t written = std::fwrite(bytes.data(), 1, bytes.size(), file_.get());
  return written == bytes.size() ? Status::Ok() : Failed("write");
}

Status RowOutput::Finish() {
  if (!waiting_.empty()) {
    return Status(StatusCode::kInternal,
                  fmt::format("{}: row {} was never done, and {} after it are", flag_, next_,
                              waiting_.size()));
  }
  if (std::fflush(file_.get()) != 0) return Failed("write");
  if (path_ != temporary_ && fsync(fileno(file_.get())) != 0) return Failed("fsync");
  if (std::fclose(file_.release()) != 0) return Failed("close");
  if (path_ == temporary_) return Status::Ok();
  if (std::rename(temporary_.c_str(), path_.c_str()) != 0) return Failed("rename");
  if (unfinished_) unfinished_->Release();
  return Status::Ok();
}

}  // namespace keel::tools
