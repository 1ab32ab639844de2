// ByteSource: the bytes of an input file from its first to its last, unpacked where it is packed.
//
// What is packed is told by the first bytes, not by the name: gzip (several members too) and
// Zstandard (several frames). It is unpacked as it is read, so that memory does not depend on the
// size. Not thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <string>

#include "common/status.h"

namespace keel::trainer {

class ByteSource {
 public:
  virtual ~ByteSource() = default;
  // Up to buffer.size() bytes, at least one unless the end is reached; 0 at the end. kInvalidData
  // names the file where packed bytes are damaged, cut off, or unpack to more than any text would.
  virtual Result<size_t> Read(std::span<char> buffer) = 0;
};

// What besides regular files may be read. A named pipe may never be written to, a device may never
// end.
enum class InputKind {
  kRegularFile,
  kFileOrStream,  // also "-", /dev/stdin and /dev/fd/<N>: what whoever starts us has opened
};

// `path` as in messages: "data file /x.jsonl". kNotFound; kInvalidData when it is no file that may
// be read.
Result<std::unique_ptr<ByteSource>> OpenByteSource(const std::string& path, InputKind kind);
// Bytes [begin, end) of a regular file as they stand there, packed or not.
Result<std::unique_ptr<ByteSource>> OpenByteRange(const std::string& path, int64_t begin,
                                                  int64_t end);
// Whether a regular file is one that OpenByteSource unpacks.
Result<bool> IsPacked(const std::string& path);

}  // namespace keel::trainer
