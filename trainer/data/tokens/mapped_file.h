// MappedFile: the bytes of a regular file, mapped and not read, with a bound on what stays
// resident.
//
// Whoever makes a file shorter while it is mapped ends this process (SIGBUS): files of tokens are
// replaced by rename, never written over. Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"

namespace keel::trainer {

class MappedFile {
 public:
  // kNotFound; kInvalidData when it is no regular file or is empty.
  static Result<std::unique_ptr<MappedFile>> Open(const std::string& path);
  ~MappedFile();
  MappedFile(const MappedFile&) = delete;
  MappedFile& operator=(const MappedFile&) = delete;

  std::span<const std::byte> bytes() const { return bytes_; }
  const std::string& path() const { return path_; }
  // Bytes [offset, offset + count) have been looked at: gives their pages back to the page cache,
  // with those that the kernel has mapped around them, so that who walks through 4 GB of tokens
  // holds none of them. What was mapped stays valid, for other threads, too.
  void Release(int64_t offset, int64_t count) const;

 private:
  MappedFile(std::string path, std::span<const std::byte> bytes)
      : path_(std::move(path)), bytes_(bytes) {}

  std::string path_;
  std::span<const std::byte> bytes_;
};

}  // namespace keel::trainer
