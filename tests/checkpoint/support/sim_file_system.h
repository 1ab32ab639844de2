// SimFileSystem: a disk in memory that can fail at any call and lose what was not synced.
//
// The crash model. After a power cut a file keeps its synced content plus any subset of the 4 KiB
// pages written since, each of which may be torn at a 512-byte sector; its size may have advanced
// without its data, which then reads as zeros. Of the directory operations since a directory's
// last sync any subset may have happened, but a rename is all or nothing. A file's fsync says
// nothing of the name that it has.
//
// A file's fsync that fails marks its dirty pages clean without writing them: what was in them is
// lost with the cache, and the next fsync says that all is well. Thread-safe.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <optional>
#include <random>
#include <string>
#include <vector>

#include "common/files/file_system.h"

namespace keel::checkpoint::testing {

struct SimDirectory;

class SimFileSystem : public FileSystem {
 public:
  SimFileSystem();
  ~SimFileSystem() override;

  // The same disk as another process sees it: with its own faults and its own count of calls.
  std::unique_ptr<SimFileSystem> Mount() const;

  // Called before each operation that could touch the disk, with its name and path, while nothing
  // is locked: it may take its time. A status that is not ok makes the operation fail with it,
  // without effect, but see SetShortWrites.
  using Fault =
      std::function<Status(int64_t call, std::string_view operation, std::string_view path)>;
  void SetFault(Fault fault);
  // Writes that fail leave the first half of what they were given in the file.
  void SetShortWrites(bool on);
  // Called on the bytes that a write has put into a file; may change them, as bad memory or a bad
  // cable would.
  using Tamper =
      std::function<void(std::string_view path, int64_t offset, std::span<char> written)>;
  void SetTamper(Tamper tamper);
  int64_t calls() const;  // of this mount, since it was made or ResetCalls
  void ResetCalls();

  // What a power cut leaves of the changes that were not synced.
  enum class Survives {
    kNothing,
    kEverything,
    kSubset,  // random, from the seed; with torn pages
  };
  // The disk as it is found after a power cut now.
  std::unique_ptr<SimFileSystem> AfterPowerCut(Survives survives, uint64_t seed) const;
  struct PowerCuts {
    // Up to so many changes all 2^n subsets of them; of more: none, all, each alone, all but each.
    int exhaustive = 12;
    // Random subsets beside that, with torn pages.
    int random = 0;
    uint64_t seed = 1;
    // Below these paths nobody looks: what happened there is random and does not count.
    std::function<bool(std::string_view path)> ignored;
  };
  using VisitDisk = std::function<void(std::unique_ptr<SimFileSystem> disk)>;
  // The disks that a power cut now may leave. Returns whether these are all that there are.
  bool ForEachPowerCut(const PowerCuts& cuts, const VisitDisk& visit) const;
  // An exact copy, caches included.
  std::unique_ptr<SimFileSystem> Clone() const;
  // Memory is short, and the cache lets go of all that is clean: pages lost in a failed fsync read
  // as they are on the disk.
  void DropCaches();
  // Names and contents of everything below `directory`, as they read now. Of files and directories
  // whose path from there `ignored` accepts only the name counts.
  uint64_t Digest(std::string_view directory = ".",
                  const std::function<bool(std::string_view path)>& ignored = {}) const;

  // Raw access for tests: not counted, never failing by fault.
  std::vector<std::string> AllFiles() const;  // paths of regular files, sorted
  std::string Content(const std::string& path) const;
  void SetContent(const std::string& path, const std::string& content);
  void Erase(const std::string& path);

  Result<std::unique_ptr<File>> Create(std::string_view path,
                                       const CreateOptions& options) override;
  Result<std::unique_ptr<File>> Open(std::string_view path) const override;
  // Nothing of a write is done before it is waited for, and the last one begun is the first one
  // done: who syncs too early, or uses the memory again, is found out.
  Result<std::unique_ptr<WriteQueue>> MakeWriteQueue(int depth) override;
  Status Append(std::string_view path, std::string_view content) override;
  Status Rename(std::string_view from, std::string_view to, RenameMode mode) override;
  Status Remove(std::string_view path) override;
  Status MakeDirectory(std::string_view path) override;
  Result<std::vector<FileInfo>> List(std::string_view path) const override;
  Status SyncDirectory(std::string_view path) override;
  Result<FileInfo> Stat(std::string_view path) const override;
  Result<int64_t> FreeBytes() const override { return int64_t{1} << 40; }
  Result<std::shared_ptr<void>> Lock(std::string_view path, std::string_view holder) override;
  Result<std::shared_ptr<void>> LockFile(std::string_view path, LockMode mode) const override;
  std::string Describe(std::string_view path) const override { return "sim:/" + std::string(path); }

 private:
  struct Disk;
  struct Mounted;
  class OpenFile;
  class LateQueue;

  SimFileSystem(std::shared_ptr<Disk> disk, std::shared_ptr<Mounted> mounted);
  static std::unique_ptr<SimFileSystem> WithTree(std::shared_ptr<SimDirectory> root);
  Result<std::shared_ptr<SimDirectory>> FindDirectory(std::string_view path) const;
  Result<std::pair<std::shared_ptr<SimDirectory>, std::string>> Resolve(
      std::string_view path) const;

  std::shared_ptr<Disk> disk_;  // open files outlive their mount
  std::shared_ptr<Mounted> mounted_;
};

}  // namespace keel::checkpoint::testing
