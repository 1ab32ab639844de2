// SimFileSystem: a disk in memory that can fail at any call and lose what was not synced.
//
// The crash model: a file keeps its synced content plus any subset of the 4 KiB pages written later
// (zeros where its size grew without its data); of the directory operations since a directory's
// last sync any subset may have happened, but a rename is all or nothing. Thread-safe.
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

#include "common/file_system.h"

namespace keel::checkpoint::testing {

class SimFileSystem : public FileSystem {
 public:
  // What survives a power cut of the writes and operations that were not synced.
  enum class Survives { kNothing, kEverything, kSubset };

  SimFileSystem();
  ~SimFileSystem() override;

  // Called before each operation that could touch the disk, with its name and path; a status that
  // is not ok makes the operation fail with it, without effect.
  using Fault =
      std::function<Status(int64_t call, std::string_view operation, std::string_view path)>;
  void SetFault(Fault fault);
  // Called on the bytes that a write has put into a file; may change them, as bad memory or a bad
  // cable would.
  using Tamper =
      std::function<void(std::string_view path, int64_t offset, std::span<char> written)>;
  void SetTamper(Tamper tamper);
  int64_t calls() const;  // since construction or ResetCalls
  void ResetCalls();

  // The disk as it is found after a power cut now.
  std::unique_ptr<SimFileSystem> AfterPowerCut(Survives survives, uint64_t seed) const;
  // An exact copy, caches included.
  std::unique_ptr<SimFileSystem> Clone() const;

  // Raw access for tests: not counted, never failing by fault.
  std::vector<std::string> AllFiles() const;  // paths of regular files, sorted
  std::string Content(const std::string& path) const;
  void SetContent(const std::string& path, const std::string& content);
  void Erase(const std::string& path);

  Result<std::unique_ptr<File>> Create(std::string_view path,
                                       const CreateOptions& options) override;
  Result<std::unique_ptr<File>> Open(std::string_view path) const override;
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
  struct Inode;
  struct Directory;
  struct Node;
  struct Change;
  struct Shared;
  class OpenFile;

  Status Before(std::string_view operation, std::string_view path) const;
  Result<std::shared_ptr<Directory>> FindDirectory(std::string_view path) const;
  Result<std::pair<std::shared_ptr<Directory>, std::string>> Resolve(std::string_view path) const;

  std::shared_ptr<Shared> shared_;  // open files outlive the disk
};

}  // namespace keel::checkpoint::testing
