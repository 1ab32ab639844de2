// The safetensors file format: 8 bytes of header length, a JSON header, one buffer without holes.
//
// The reader trusts nothing: lengths are checked against the file before they are used, and every
// rule of the format is enforced. Two writers of headers: the plain one, and the sharded one that
// stock PyTorch (torch.distributed.checkpoint.HuggingFaceStorageReader) loads at any layout; see
// docs/formats/checkpoint.md.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/file_system.h"
#include "common/status.h"
#include "common/tensors/box.h"
#include "common/tensors/dtype.h"

namespace keel::checkpoint {

inline constexpr int64_t kMaxSafetensorsHeader = 100'000'000;  // bytes; the format's own limit
inline constexpr int64_t kDataAlignment = 4096;  // of the first data byte in our files

struct SafetensorsTensor {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  int64_t begin = 0;  // offsets in the file, not in the buffer
  int64_t end = 0;
  std::string narrow = {};  // F8_E4M3 or the like, whose bytes are kU8 here; "": not such a one
  int64_t bytes() const { return end - begin; }
};

struct SafetensorsHeader {
  std::vector<SafetensorsTensor> tensors;       // by offset; contiguous up to the end of the file
  std::map<std::string, std::string> metadata;  // "__metadata__"
  int64_t data_start = 0;
};

// What becomes of tensors of float formats of 8 bits, with which nothing here computes.
enum class NarrowFloats { kRefused, kAsBytes };

// Parses the JSON header `json` of a file of `file_size` bytes. `where` (the path) stands first in
// messages. kInvalidData names the tensor and the rule that is broken.
Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t file_size,
                                                 std::string_view where,
                                                 NarrowFloats narrow = NarrowFloats::kRefused);

// Reads and parses the header of an open file; the header is not read before its length is checked.
Result<SafetensorsHeader> ReadSafetensorsHeader(const File& file, std::string_view where,
                                                NarrowFloats narrow = NarrowFloats::kRefused);
Result<SafetensorsHeader> ReadSafetensorsHeader(const FileSystem& fs, std::string_view path);

// One tensor (or one box of it) for a header to be written; data follow in this order.
struct SafetensorsPart {
  std::string_view name;
  DType dtype = DType::kF32;
  Dims shape;         // of what the file holds: the box's size
  Dims saved_offset;  // the box's offset; used by the sharded header alone
};

// Length prefix and JSON, padded with spaces to a multiple of `alignment`; kInternal when a name
// appears twice.
Result<std::string> BuildSafetensorsHeader(std::span<const SafetensorsPart> parts,
                                           const std::map<std::string, std::string>& metadata,
                                           int64_t alignment);
// The same with PyTorch's sharding metadata (format, DCP_VERSION, DCP_SHARDING_INFO) and data that
// start at a multiple of kDataAlignment.
Result<std::string> BuildShardedSafetensorsHeader(std::span<const SafetensorsPart> parts);

}  // namespace keel::checkpoint
