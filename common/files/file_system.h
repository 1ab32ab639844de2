// FileSystem: the only way the checkpoint code touches a disk.
//
// One real implementation (PosixFileSystem) and one simulated disk for crash tests. All paths are
// relative to the root the file system was opened at and are resolved beneath it: no "..", no
// absolute path, no symbolic link on the way. "." is the root itself. Thread-safe. Errors name the
// operation, the whole path and errno.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/write_queue.h"
#include "common/status.h"

namespace keel {

enum class FileKind { kFile, kDirectory, kLink, kOther };

struct FileInfo {
  std::string name;  // last component
  FileKind kind = FileKind::kFile;
  int64_t size = 0;
  int64_t inode = 0;
  int64_t changed_ns = 0;  // when its status last did (ctime): another file may get its inode
};

struct CreateOptions {
  bool direct = false;  // O_DIRECT: offsets, lengths and memory aligned to 4096
  // Bytes to reserve (fallocate), so that a full disk shows early; the file has this size then.
  int64_t preallocate = 0;
};

// An open file. Not thread-safe except ReadAt. After a failed Sync or Close the file is dead: all
// calls but Size return that first error, for the kernel reports a lost page once and then takes it
// for written. The content is untrusted and must be written again under another name.
class File {
 public:
  virtual ~File() = default;  // closes; an error is lost, so call Close()
  virtual Status WriteAt(int64_t offset, std::span<const std::byte> data) = 0;  // all of it
  // Up to data.size() bytes; fewer only at the end of the file.
  virtual Result<int64_t> ReadAt(int64_t offset, std::span<std::byte> data) const = 0;
  // A hint that these bytes will be read soon; returns at once.
  virtual void Prefetch(int64_t /*offset*/, int64_t /*bytes*/) const {}
  // A hint that the file, which is synced, shall be read from the disk and not from memory.
  virtual void DropCached() const {}
  virtual Status Truncate(int64_t size) = 0;
  virtual Status Sync() = 0;
  // Also closes a dead file. Ok when it is closed already; nothing else is then of use.
  virtual Status Close() = 0;
  virtual Result<int64_t> Size() const = 0;
};

class FileSystem {
 public:
  virtual ~FileSystem() = default;

  // Files. Create is O_CREAT|O_EXCL|O_NOFOLLOW|O_CLOEXEC and leaves no file when it fails; Open
  // reads regular files only. Who may read what is made here is for the umask to say: files have
  // mode 0666 less that, directories 0777.
  virtual Result<std::unique_ptr<File>> Create(std::string_view path,
                                               const CreateOptions& options) = 0;
  virtual Result<std::unique_ptr<File>> Open(std::string_view path) const = 0;
  // For up to `depth` writes at once to files that this has created. kUnavailable, saying why,
  // where that cannot be had.
  virtual Result<std::unique_ptr<WriteQueue>> MakeWriteQueue(int depth);
  // Adds to the end of a regular file, which is made when it is missing. Not synced.
  virtual Status Append(std::string_view path, std::string_view content) = 0;
  // Names. No rename follows links; kNoReplace is atomic (RENAME_NOREPLACE). kExchange gives each
  // of two that are there the other's name, at one instant (RENAME_EXCHANGE); kUnavailable where
  // the file system does not know how.
  enum class RenameMode { kNoReplace, kReplace, kExchange };
  virtual Status Rename(std::string_view from, std::string_view to, RenameMode mode) = 0;
  virtual Status Remove(std::string_view path) = 0;  // a file, a link, or an empty directory
  // Directories. MakeDirectory is not recursive.
  virtual Status MakeDirectory(std::string_view path) = 0;
  virtual Result<std::vector<FileInfo>> List(std::string_view path) const = 0;  // sorted by name
  virtual Status SyncDirectory(std::string_view path) = 0;
  // A link is described itself, unless the file system was opened to follow links.
  virtual Result<FileInfo> Stat(std::string_view path) const = 0;
  virtual Result<int64_t> FreeBytes() const = 0;
  // An exclusive advisory lock on a never-deleted file, held until the returned object or the
  // process dies. The file then carries `holder`, one line that says who that is, or nothing when
  // the disk has no room for it. kBusy, with what the file carries in the message, when anyone
  // holds it, in this process or another. To open a file is enough to lock it; so nobody may read
  // this one who may not write it.
  virtual Result<std::shared_ptr<void>> Lock(std::string_view path, std::string_view holder) = 0;
  // An advisory lock on an existing regular file, any number of shared ones or one exclusive, held
  // until the returned object dies or its process does. It stays with the file when that is renamed
  // or removed. Never waits: kBusy when a lock of another opening, be it of this process, is in the
  // way. kUnavailable where the file system knows no locks.
  enum class LockMode { kShared, kExclusive };
  virtual Result<std::shared_ptr<void>> LockFile(std::string_view path, LockMode mode) const = 0;
  // For messages: "/runs/a/" + path.
  virtual std::string Describe(std::string_view path) const = 0;
};

// What happens at a symbolic link in the place of a file. Links to directories are never entered.
enum class LinkPolicy {
  kRefuse,
  kFollow,  // for input that the user points to, such as a Hugging Face cache, which is made of
            // links; one to nothing is listed as a link, and kInvalidData where it is opened
};

// Opens the directory `root`. With `create`, what is missing of it is made, each level synced into
// its parent.
Result<std::unique_ptr<FileSystem>> OpenPosixFileSystem(const std::string& root, bool create,
                                                        LinkPolicy links = LinkPolicy::kRefuse);

// Small conveniences on top of the interface.
Result<std::string> ReadFile(const FileSystem& fs, std::string_view path, int64_t max_bytes);
// Create, write, Sync, Close. The directory is not synced.
Status WriteFileDurably(FileSystem& fs, std::string_view path, std::string_view content);
// Writes ReplacementOf(path), Sync, Rename kReplace, SyncDirectory: readers see the old or the new
// content. One writer per path at a time.
Status ReplaceFileDurably(FileSystem& fs, std::string_view path, std::string_view content);
// `path`.tmp, which a writer that is killed leaves behind, and the next one removes.
std::string ReplacementOf(std::string_view path);
// Makes each missing level and syncs it and its parent. An error when one is there and is no
// directory.
Status MakeDirectories(FileSystem& fs, std::string_view path);
// Removes a tree without following links. Stops at the first error.
Status RemoveTree(FileSystem& fs, std::string_view path);

}  // namespace keel
