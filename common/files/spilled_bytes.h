// SpilledBytes: bytes that are appended now and read later, on the disk but for the last few.
//
// Up to kHeld bytes stay in memory, and then no file is made; what is before them lies in a file
// without a name, which is gone with this object. Appending is for one thread; once nothing is
// appended any more, any number may read.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/files/posix_file.h"
#include "common/status.h"

namespace keel {

class SpilledBytes {
 public:
  static constexpr size_t kHeld = size_t{4} << 20;

  // `folder`: where the file is made, once one is needed.
  explicit SpilledBytes(std::string folder) : folder_(std::move(folder)) {}

  // At size(), where the bytes are found again. kNoSpace, kCannotCreate name the folder.
  Status Append(std::span<const std::byte> bytes);
  int64_t size() const { return written_ + std::ssize(tail_); }
  // Bytes [begin, begin + bytes.size()), which were appended.
  Status Read(int64_t begin, std::span<std::byte> bytes) const;
  // Forgets all of them, and gives their place back.
  Status Clear();

 private:
  std::string folder_;
  std::optional<PosixFile> file_;
  int64_t written_ = 0;          // bytes in file_
  std::vector<std::byte> tail_;  // behind them
};

}  // namespace keel
