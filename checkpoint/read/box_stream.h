// BoxStream: writes one tensor file from boxes of a checkpoint, a slab at a time, so that memory
// does not grow with the tensors.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/read/step_reader.h"
#include "common/files/file_system.h"
#include "common/status.h"
#include "common/tensors/box.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

struct StreamedBox {
  TensorInfo tensor;
  Box box;
};

struct BoxStreamOptions {
  int64_t buffer_bytes = int64_t{32} << 20;  // of values in memory at a time
  int threads = 2;                           // that read and verify; each needs one chunk more
};

// Creates `path` in `out`: `header`, then the values of `boxes`, row-major, in this order. Bytes
// are verified when they are read and digested before they are written; the file is synced and
// closed. `chunk_bytes` is the unit of the digest. After an error the file is dead.
Result<ChunkedDigest> StreamBoxes(const StepReader& reader, std::string_view scope,
                                  std::span<const StreamedBox> boxes, std::string_view header,
                                  FileSystem& out, const std::string& path, int64_t chunk_bytes,
                                  const BoxStreamOptions& options);

// Cuts a box into boxes of at most `max_elements` (>= 1) that follow each other in its row-major
// order. None for an empty box.
std::vector<Box> CutIntoSlabs(const Box& box, int64_t max_elements);

}  // namespace keel::checkpoint
