// MappedFile: the bytes of a regular file, mapped and not read, with a bound on what stays
// resident.
//
// Files of tokens are replaced by rename, never written over: whoever writes over one that is
// mapped changes what is learnt, and whoever makes it shorter ends this process (SIGBUS). So who
// reads asks CheckUnchanged before, against the second, and after, against the first. (Of a shard's
// table of documents nobody asks: there are too many.) Thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/files/posix_file.h"
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
  // kDataLoss when the file is not as long as it was when it was opened, or was written to since
  // (by its time of modification, so that touch counts, too).
  Status CheckUnchanged() const;
  // Bytes [offset, offset + count) have been looked at: gives their pages back to the page cache,
  // with those that the kernel has mapped around them, so that who walks through 4 GB of tokens
  // holds none of them. What was mapped stays valid, for other threads, too.
  void Release(int64_t offset, int64_t count) const;

 private:
  MappedFile(std::string path, Descriptor file, int64_t modified, std::span<const std::byte> bytes)
      : path_(std::move(path)), file_(std::move(file)), modified_(modified), bytes_(bytes) {}

  std::string path_;
  Descriptor file_;
  int64_t modified_;  // nanoseconds since 1970
  std::span<const std::byte> bytes_;
};

}  // namespace keel::trainer
