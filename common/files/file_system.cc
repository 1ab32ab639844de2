#include "common/files/file_system.h"

#include <dirent.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <linux/fs.h>
#include <sys/file.h>
#include <sys/stat.h>
#include <sys/statvfs.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <climits>
#include <thread>
#include <utility>

#include "common/files/io_uring_queue.h"
#include "common/files/posix_file.h"
#include "common/text.h"

namespace keel {
namespace {

// What the umask takes from.
constexpr mode_t kFileMode = 0666;
constexpr mode_t kDirectoryMode = 0777;

FileKind KindOf(mode_t mode) {
  if (S_ISREG(mode)) return FileKind::kFile;
  if (S_ISDIR(mode)) return FileKind::kDirectory;
  if (S_ISLNK(mode)) return FileKind::kLink;
  return FileKind::kOther;
}

FileInfo InfoOf(std::string name, const struct stat& info) {
  return {std::move(name), KindOf(info.st_mode), static_cast<int64_t>(info.st_size),
          static_cast<int64_t>(info.st_ino),
          static_cast<int64_t>(info.st_ctim.tv_sec) * 1'000'000'000 + info.st_ctim.tv_nsec};
}

// A held lock. A clean end leaves no holder in the file for the next one to be told of, and lets
// go of the lock although children that were forked meanwhile have the descriptor too; these
// themselves let go of nothing.
class PosixLock {
 public:
  explicit PosixLock(Descriptor fd) : fd_(std::move(fd)) {}
  PosixLock(const PosixLock&) = delete;
  PosixLock& operator=(const PosixLock&) = delete;
  ~PosixLock() {
    if (::getpid() != process_) return;
    (void)Retry([&] { return ::ftruncate(fd_.get(), 0); });
    (void)Retry([&] { return ::flock(fd_.get(), LOCK_UN); });
  }

 private:
  const pid_t process_ = ::getpid();
  Descriptor fd_;
};

class PosixFileSystem : public FileSystem {
 public:
  PosixFileSystem(Descriptor root, std::string name, LinkPolicy links)
      : root_(std::move(root)),
        name_(std::move(name)),
        no_follow_(links == LinkPolicy::kRefuse ? O_NOFOLLOW : 0),
        stat_flags_(links == LinkPolicy::kRefuse ? AT_SYMLINK_NOFOLLOW : 0) {}

  Result<std::unique_ptr<File>> Create(std::string_view path,
                                       const CreateOptions& options) override {
    KEEL_ASSIGN_OR_RETURN(const Place place, Resolve(path));
    const int flags =
        O_RDWR | O_CREAT | O_EXCL | O_NOFOLLOW | O_CLOEXEC | (options.direct ? O_DIRECT : 0);
    Descriptor fd(Retry(
        [&] { return ::openat(place.directory.get(), place.name.c_str(), flags, kFileMode); }));
    if (!fd.valid()) {
      const int error = errno;
      // Linux finds out that a file system has no O_DIRECT after it has made the file.
      if (options.direct && error == EINVAL)
        (void)::unlinkat(place.directory.get(), place.name.c_str(), 0);
      return Status::FromErrno(error, "create", Describe(path));
    }
    if (options.preallocate > 0 &&
        Retry([&] { return ::fallocate(fd.get(), 0, 0, options.preallocate); }) != 0 &&
        errno != EOPNOTSUPP && errno != ENOSYS) {
      const int error = errno;
      const Status status = Status::FromErrno(
          error, fmt::format("reserve {} bytes for", options.preallocate), Describe(path));
      (void)::unlinkat(place.directory.get(), place.name.c_str(), 0);
      return status;
    }
    return std::unique_ptr<File>(std::make_unique<PosixFile>(std::move(fd), Describe(path)));
  }

  Result<std::unique_ptr<File>> Open(std::string_view path) const override {
    KEEL_ASSIGN_OR_RETURN(const Place place, Resolve(path));
    // Non-blocking, so that a pipe of this name cannot hold us up; regular files do not care.
    Descriptor fd(Retry([&] {
      return ::openat(place.directory.get(), place.name.c_str(),
                      O_RDONLY | no_follow_ | O_CLOEXEC | O_NONBLOCK);
    }));
    if (!fd.valid()) return NotThere(errno, "open", place, path);
    KEEL_RETURN_IF_ERROR(CheckRegular(fd, "open", path));
    return std::unique_ptr<File>(std::make_unique<PosixFile>(std::move(fd), Describe(path)));
  }

  Result<std::unique_ptr<WriteQueue>> MakeWriteQueue(int depth) override {
    return MakeIoUringQueue(depth);
  }

  Status Append(std::string_view path, std::string_view content) override {
    KEEL_ASSIGN_OR_RETURN(const Place place, Resolve(path));
    Descriptor fd(Retry([&] {
      return ::openat(place.directory.get(), place.name.c_str(),
                      O_WRONLY | O_CREAT | O_APPEND | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK,
                      kFileMode);
    }));
    if (!fd.valid()) return Status::FromErrno(errno, "open", Describe(path));
    KEEL_RETURN_IF_ERROR(CheckRegular(fd, "append to", path));
    while (!content.empty()) {
      const ssize_t written =
          Retry([&] { return ::write(fd.get(), content.data(), content.size()); });
      if (written < 0) return Status::FromErrno(errno, "append to", Describe(path));
      if (written == 0) return WroteNothing("append to", Describe(path), content.size());
      content.remove_prefix(static_cast<size_t>(written));
    }
    if (::close(fd.Release()) != 0) return Status::FromErrno(errno, "close", Describe(path));
    return Status::Ok();
  }

  Status Rename(std::string_view from, std::string_view to, RenameMode mode) override {
    KEEL_ASSIGN_OR_RETURN(const Place source, Resolve(from));
    KEEL_ASSIGN_OR_RETURN(const Place target, Resolve(to));
    const unsigned flags = mode == RenameMode::kNoReplace  ? RENAME_NOREPLACE
                           : mode == RenameMode::kExchange ? RENAME_EXCHANGE
                                                           : 0;
    if (::syscall(SYS_renameat2, source.directory.get(), source.name.c_str(),
                  target.directory.get(), target.name.c_str(), flags) != 0) {
      const int error = errno;
      Status status =
          Status::FromErrno(error, fmt::format("rename {} to", Describe(from)), Describe(to));
      const bool unknown = error == EINVAL || error == ENOSYS || error == EOPNOTSUPP;
      if (mode == RenameMode::kExchange && unknown)
        return Status(StatusCode::kUnavailable, status.message());
      return status;
    }
    return Status::Ok();
  }

  Status Remove(std::string_view path) override {
    KEEL_ASSIGN_OR_RETURN(const Place place, Resolve(path));
    if (::unlinkat(place.directory.get(), place.name.c_str(), 0) == 0) return Status::Ok();
    if (errno == EISDIR && ::unlinkat(place.directory.get(), place.name.c_str(), AT_REMOVEDIR) == 0)
      return Status::Ok();
    return Status::FromErrno(errno, "remove", Describe(path));
  }

  Status MakeDirectory(std::string_view path) override {
    KEEL_ASSIGN_OR_RETURN(const Place place, Resolve(path));
    if (::mkdirat(place.directory.get(), place.name.c_str(), kDirectoryMode) != 0) {
      return Status::FromErrno(errno, "make directory", Describe(path));
    }
    return Status::Ok();
  }

  Result<std::vector<FileInfo>> List(std::string_view path) const override {
    KEEL_ASSIGN_OR_RETURN(Descriptor fd, OpenDirectory(path));
    const int raw = fd.get();
    const std::unique_ptr<DIR, int (*)(DIR*)> stream(::fdopendir(raw), ::closedir);
    if (stream == nullptr) return Status::FromErrno(errno, "list", Describe(path));
    (void)fd.Release();  // the stream owns it
    std::vector<FileInfo> infos;
    for (;;) {
      errno = 0;
      const dirent* entry = ::readdir(stream.get());
      if (entry == nullptr) {
        if (errno != 0) return Status::FromErrno(errno, "list", Describe(path));
        break;
      }
      const std::string_view name = entry->d_name;
      if (name == "." || name == "..") continue;
      struct stat info {};
      if (::fstatat(raw, entry->d_name, &info, stat_flags_) != 0) {
        const int error = errno;
        // Removed meanwhile, or a link to nothing, which whoever opens it is told of.
        if (error == ENOENT && ::fstatat(raw, entry->d_name, &info, AT_SYMLINK_NOFOLLOW) != 0)
          continue;
        if (error != ENOENT)
          return Status::FromErrno(error, "stat", fmt::format("{}/{}", Describe(path), name));
      }
      infos.push_back(InfoOf(std::string(name), info));
    }
    std::sort(infos.begin(), infos.end(),
              [](const FileInfo& a, const FileInfo& b) { return a.name < b.name; });
    return infos;
  }

  Status SyncDirectory(std::string_view path) override {
    KEEL_ASSIGN_OR_RETURN(const Descriptor fd, OpenDirectory(path));
    if (::fsync(fd.get()) != 0) return Status::FromErrno(errno, "fsync directory", Describe(path));
    return Status::Ok();
  }

  Result<FileInfo> Stat(std::string_view path) const override {
    if (IsRoot(path)) return FileInfo{".", FileKind::kDirectory, 0, 0};
    KEEL_ASSIGN_OR_RETURN(const Place place, Resolve(path));
    struct stat info {};
    if (::fstatat(place.directory.get(), place.name.c_str(), &info, stat_flags_) != 0) {
      return NotThere(errno, "stat", place, path);
    }
    return InfoOf(place.name, info);
  }

  Result<int64_t> FreeBytes() const override {
    struct statvfs info {};
    if (::fstatvfs(root_.get(), &info) != 0) return Status::FromErrno(errno, "statvfs", name_);
    return static_cast<int64_t>(info.f_bavail) * static_cast<int64_t>(info.f_frsize);
  }

  Result<std::shared_ptr<void>> Lock(std::string_view path, std::string_view holder) override {
    KEEL_ASSIGN_OR_RETURN(const Place place, Resolve(path));
    Descriptor fd(Retry([&] {
      return ::openat(place.directory.get(), place.name.c_str(),
                      O_RDWR | O_CREAT | O_NOFOLLOW | O_CLOEXEC | O_NONBLOCK, kFileMode);
    }));
    if (!fd.valid()) return Status::FromErrno(errno, "open", Describe(path));
    KEEL_RETURN_IF_ERROR(CheckRegular(fd, "lock", path));
    KeepFromReaders(fd);
    if (Retry([&] { return ::flock(fd.get(), LOCK_EX | LOCK_NB); }) != 0) {
      if (errno != EWOULDBLOCK) return Status::FromErrno(errno, "lock", Describe(path));
      return Status(StatusCode::kBusy,
                    fmt::format("lock {}: held by {}", Describe(path), HolderIn(fd.get())));
    }
    // Synced, so that a network file system shows it to others. Being unable to say who holds the
    // lock, on a full disk, is no reason not to hold it.
    constexpr int kTries = 3;
    for (int i = 0; i < kTries && !WriteHolder(fd.get(), holder);) ++i;
    return std::shared_ptr<void>(std::make_shared<PosixLock>(std::move(fd)));
  }

  Result<std::shared_ptr<void>> LockFile(std::string_view path, LockMode mode) const override {
    KEEL_ASSIGN_OR_RETURN(const Place place, Resolve(path));
    const auto open = [&](int access) {
      return Descriptor(Retry([&] {
        return ::openat(place.directory.get(), place.name.c_str(),
                        access | no_follow_ | O_CLOEXEC | O_NONBLOCK);
      }));
    };
    // NFS makes byte-range locks of these, and an exclusive one of those needs a file open for
    // writing.
    const bool exclusive = mode == LockMode::kExclusive;
    Descriptor opened = open(exclusive ? O_RDWR : O_RDONLY);
    if (!opened.valid() && exclusive && (errno == EACCES || errno == EROFS || errno == EPERM)) {
      opened = open(O_RDONLY);
    }
    if (!opened.valid()) return Status::FromErrno(errno, "open", Describe(path));
    KEEL_RETURN_IF_ERROR(CheckRegular(opened, "lock", path));
    auto fd = std::make_shared<Descriptor>(std::move(opened));
    if (Retry([&] { return ::flock(fd->get(), (exclusive ? LOCK_EX : LOCK_SH) | LOCK_NB); }) == 0) {
      return std::shared_ptr<void>(std::move(fd));
    }
    const int error = errno;
    if (error == EWOULDBLOCK) {
      return Status(StatusCode::kBusy, fmt::format("lock {}: in use", Describe(path)));
    }
    const Status status = Status::FromErrno(error, "lock", Describe(path));
    const bool unknown = error == ENOSYS || error == EOPNOTSUPP || error == ENOLCK;
    return unknown ? Status(StatusCode::kUnavailable, status.message()) : status;
  }

  std::string Describe(std::string_view path) const override {
    const int error = errno;  // of which messages speak that are made of this; to allocate sets it
    std::string text =
        IsRoot(path) ? name_ : fmt::format("{}{}{}", name_, name_.ends_with('/') ? "" : "/", path);
    errno = error;
    return text;
  }

 private:
  // An open parent directory and the last component.
  struct Place {
    Descriptor directory;
    std::string name;
  };

  // A file that could not be opened: that its name is a link to nothing is more than that it is not
  // there, and what is to be done is another thing.
  Status NotThere(int error, std::string_view operation, const Place& place,
                  std::string_view path) const {
    char target[PATH_MAX];
    const ssize_t size =
        error == ENOENT && no_follow_ == 0
            ? ::readlinkat(place.directory.get(), place.name.c_str(), target, sizeof target)
            : -1;
    if (size < 0) return Status::FromErrno(error, operation, Describe(path));
    return Status(
        StatusCode::kInvalidData,
        fmt::format("{} {}: it is a link to {}, where there is nothing: what it points to "
                    "was not copied or mounted with it, or was removed. Copy with cp -rL, "
                    "mount the folder that both are in (of a hub's cache the one with "
                    "blobs/ and snapshots/), or download the file again",
                    operation, Describe(path),
                    Printable({target, static_cast<size_t>(size)}, sizeof target)));
  }

  // Whether the file says it, and nothing else.
  static bool WriteHolder(int fd, std::string_view holder) {
    if (Retry([&] { return ::ftruncate(fd, 0); }) != 0) return false;
    size_t written = 0;
    while (written < holder.size()) {
      const ssize_t now = Retry([&] {
        return ::pwrite(fd, holder.data() + written, holder.size() - written,
                        static_cast<off_t>(written));
      });
      if (now <= 0) return false;
      written += static_cast<size_t>(now);
    }
    return ::fsync(fd) == 0;
  }

  // What a locked file says, or what is known without it. Who has just locked it may not have
  // written yet; on a full disk he never does.
  static std::string HolderIn(int fd) {
    char text[512];
    ssize_t size = 0;
    for (int tries = 0; size <= 0 && tries < 20; ++tries) {
      if (tries > 0) std::this_thread::sleep_for(std::chrono::milliseconds(25));
      size = Retry([&] { return ::pread(fd, text, sizeof text, 0); });
    }
    if (size <= 0) return "another process";
    return Printable({text, static_cast<size_t>(size)}, sizeof text);
  }

  Status CheckRegular(const Descriptor& fd, std::string_view operation,
                      std::string_view path) const {
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0) return Status::FromErrno(errno, "stat", Describe(path));
    if (S_ISREG(info.st_mode)) return Status::Ok();
    return Status(StatusCode::kIo,
                  fmt::format("{} {}: not a regular file", operation, Describe(path)));
  }

  // Takes the right to read from whom the umask gives no right to write, of a file of our own.
  static void KeepFromReaders(const Descriptor& fd) {
    struct stat info {};
    if (::fstat(fd.get(), &info) != 0 || info.st_uid != ::geteuid()) return;
    const mode_t mode = info.st_mode & 0777u;
    const mode_t writers = mode & 0222u;
    const mode_t kept = mode & (writers | writers << 1);
    if (kept != mode) (void)::fchmod(fd.get(), kept);
  }

  static bool IsRoot(std::string_view path) { return path.empty() || path == "."; }

  // Opens component after component without following links, so that nothing outside the root is
  // reached even while someone changes the tree.
  Result<Descriptor> Walk(std::string_view path, std::string_view whole) const {
    Descriptor at(::fcntl(root_.get(), F_DUPFD_CLOEXEC, 0));
    if (!at.valid()) return Status::FromErrno(errno, "open", name_);
    while (!path.empty()) {
      const size_t slash = std::min(path.find('/'), path.size());
      const std::string part(path.substr(0, slash));
      path.remove_prefix(std::min(path.size(), slash + 1));
      if (part.empty() || part == "." || part == "..") {
        return Status(StatusCode::kInvalidData,
                      fmt::format("{}: not a path of plain names below {}", whole, name_));
      }
      Descriptor next(Retry([&] {
        return ::openat(at.get(), part.c_str(), O_PATH | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
      }));
      if (!next.valid()) return Status::FromErrno(errno, "open", Describe(whole));
      at = std::move(next);
    }
    return at;
  }

  Result<Place> Resolve(std::string_view path) const {
    const size_t slash = path.rfind('/');
    const std::string_view last = slash == std::string_view::npos ? path : path.substr(slash + 1);
    if (last.empty() || last == "." || last == ".." || path.front() == '/' ||
        path.find('\0') != std::string_view::npos) {
      return Status(StatusCode::kInvalidData,
                    fmt::format("'{}': not a path of plain names below {}", path, name_));
    }
    KEEL_ASSIGN_OR_RETURN(
        Descriptor directory,
        Walk(slash == std::string_view::npos ? std::string_view() : path.substr(0, slash), path));
    return Place{std::move(directory), std::string(last)};
  }

  Result<Descriptor> OpenDirectory(std::string_view path) const {
    Descriptor base;
    std::string name = ".";
    if (!IsRoot(path)) {
      KEEL_ASSIGN_OR_RETURN(Place place, Resolve(path));
      base = std::move(place.directory);
      name = std::move(place.name);
    }
    Descriptor fd(Retry([&] {
      return ::openat(base.valid() ? base.get() : root_.get(), name.c_str(),
                      O_RDONLY | O_DIRECTORY | O_NOFOLLOW | O_CLOEXEC);
    }));
    if (!fd.valid()) return Status::FromErrno(errno, "open directory", Describe(path));
    return fd;
  }

  Descriptor root_;
  std::string name_;
  int no_follow_;   // for opening files
  int stat_flags_;  // for looking at them
};

// fsync of a directory that was opened by name.
Status SyncDirectoryOf(const std::string& name) {
  Descriptor fd(Retry([&] { return ::open(name.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd.valid()) return Status::FromErrno(errno, "open directory", name);
  if (::fsync(fd.get()) != 0) return Status::FromErrno(errno, "fsync directory", name);
  return Status::Ok();
}

// Makes an absolute or relative directory with its parents; links on the way are followed, since
// where the root lies is the user's choice. Whoever commits into it syncs it; that it is there must
// not be lost either.
Status MakeRoot(const std::string& root) {
  for (size_t slash = root.find('/', 1);; slash = root.find('/', slash + 1)) {
    const std::string part = root.substr(0, slash);
    if (::mkdir(part.c_str(), kDirectoryMode) == 0) {
      const size_t above = part.find_last_of('/', part.find_last_not_of('/'));
      const std::string parent = above == std::string::npos ? "." : part.substr(0, above + 1);
      KEEL_RETURN_IF_ERROR(SyncDirectoryOf(parent));
    } else if (errno != EEXIST) {
      return Status::FromErrno(errno, "make directory", part);
    }
    if (slash == std::string::npos) return Status::Ok();
  }
}

std::string_view Parent(std::string_view path) {
  const size_t slash = path.rfind('/');
  return slash == std::string_view::npos ? std::string_view(".") : path.substr(0, slash);
}

}  // namespace

Result<std::unique_ptr<WriteQueue>> FileSystem::MakeWriteQueue(int /*depth*/) {
  return Status(StatusCode::kUnavailable, "this file system writes one piece after the other");
}

Result<std::unique_ptr<FileSystem>> OpenPosixFileSystem(const std::string& root, bool create,
                                                        LinkPolicy links) {
  if (root.empty()) return Status(StatusCode::kUsage, "the directory's name is empty");
  if (create) KEEL_RETURN_IF_ERROR(MakeRoot(root));
  Descriptor fd(Retry([&] { return ::open(root.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC); }));
  if (!fd.valid()) return Status::FromErrno(errno, "open directory", root);
  std::string name = root;
  while (name.size() > 1 && name.back() == '/') name.pop_back();
  return std::unique_ptr<FileSystem>(
      std::make_unique<PosixFileSystem>(std::move(fd), std::move(name), links));
}

Result<std::string> ReadFile(const FileSystem& fs, std::string_view path, int64_t max_bytes) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Open(path));
  KEEL_ASSIGN_OR_RETURN(const int64_t size, file->Size());
  if (size > max_bytes) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: has {} bytes, at most {} are expected",
                                                        fs.Describe(path), size, max_bytes));
  }
  std::string content(static_cast<size_t>(size), '\0');
  KEEL_ASSIGN_OR_RETURN(const int64_t got,
                        file->ReadAt(0, std::as_writable_bytes(std::span(content))));
  content.resize(static_cast<size_t>(got));
  return content;
}

Status WriteFileDurably(FileSystem& fs, std::string_view path, std::string_view content) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Create(path, {}));
  KEEL_RETURN_IF_ERROR(file->WriteAt(0, std::as_bytes(std::span(content))));
  KEEL_RETURN_IF_ERROR(file->Sync());
  return file->Close();
}

std::string ReplacementOf(std::string_view path) { return fmt::format("{}.tmp", path); }

Status ReplaceFileDurably(FileSystem& fs, std::string_view path, std::string_view content) {
  const std::string temporary = ReplacementOf(path);
  if (const Status removed = fs.Remove(temporary);
      !removed.ok() && removed.code() != StatusCode::kNotFound) {
    return removed;
  }
  Status status = WriteFileDurably(fs, temporary, content);
  if (status.ok()) status = fs.Rename(temporary, path, FileSystem::RenameMode::kReplace);
  if (!status.ok()) {
    (void)fs.Remove(temporary);
    return status;
  }
  return fs.SyncDirectory(Parent(path));
}

Status MakeDirectories(FileSystem& fs, std::string_view path) {
  if (path == ".") return Status::Ok();
  for (size_t slash = path.find('/');; slash = path.find('/', slash + 1)) {
    const std::string_view part = path.substr(0, slash);
    const Status made = fs.MakeDirectory(part);
    if (made.ok()) {
      KEEL_RETURN_IF_ERROR(fs.SyncDirectory(part));
      KEEL_RETURN_IF_ERROR(fs.SyncDirectory(Parent(part)));
    } else if (made.code() != StatusCode::kAlreadyExists) {
      return made;
    } else {
      KEEL_ASSIGN_OR_RETURN(const FileInfo there, fs.Stat(part));
      if (there.kind != FileKind::kDirectory) {
        return Status(
            StatusCode::kAlreadyExists,
            fmt::format("make directory {}: something else has this name", fs.Describe(part)));
      }
    }
    if (slash == std::string_view::npos) return Status::Ok();
  }
}

Status RemoveTree(FileSystem& fs, std::string_view path) {
  KEEL_ASSIGN_OR_RETURN(const FileInfo info, fs.Stat(path));
  if (info.kind == FileKind::kDirectory) {
    KEEL_ASSIGN_OR_RETURN(const std::vector<FileInfo> children, fs.List(path));
    for (const FileInfo& child : children) {
      KEEL_RETURN_IF_ERROR(RemoveTree(fs, fmt::format("{}/{}", path, child.name)));
    }
  }
  return fs.Remove(path);
}

}  // namespace keel
