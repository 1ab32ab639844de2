// ShardWriter: writes one file from many pieces of memory, and digests every byte before it is
// written.
//
// Owns a ring of aligned buffers for as long as it lives. The calling thread hashes and gathers,
// one writer thread writes, so that a synchronous save runs at the disk's rate. Not thread-safe.
// The memory that is written must not change until Write returns.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/chunk_digest.h"
#include "common/box.h"
#include "common/file_system.h"
#include "common/shard_table.h"
#include "common/status.h"

namespace keel::checkpoint {

enum class IoBackend { kBuffered, kDirect };
std::string_view IoBackendName(IoBackend backend);  // "buffered", "direct"

// A box's values, row-major in the file, wherever they lie in memory.
struct WritePiece {
  Dims size;
  StridedView view;
  int64_t element_size = 1;
  int64_t bytes() const { return size.elements() * element_size; }
};

struct WriteTimes {
  double write_s = 0;  // hashing, gathering, writing
  double fsync_s = 0;
};

class ShardWriter {
 public:
  // `chunk_bytes`: unit of the digests, and of the writes. `ring`: buffers of that size, >= 2.
  ShardWriter(FileSystem& fs, IoBackend backend, int64_t chunk_bytes, int ring = 4);
  ~ShardWriter();

  IoBackend backend() const { return backend_; }

  // Creates `path` with `header` and the pieces after it, syncs and closes it. After an error the
  // file is dead: its name must not be used again.
  Result<ChunkedDigest> Write(std::string_view path, std::string_view header,
                              std::span<const WritePiece> pieces, WriteTimes* times);

 private:
  class Stream;
  struct Ring;
  FileSystem& fs_;
  IoBackend backend_;
  int64_t chunk_bytes_;
  std::unique_ptr<Ring> ring_;
};

// Writes a few megabytes in `directory` with each back-end and returns the faster one; buffered
// when direct writes are not possible there. The files are removed.
IoBackend MeasureBackend(FileSystem& fs, std::string_view directory, int64_t bytes);

}  // namespace keel::checkpoint
