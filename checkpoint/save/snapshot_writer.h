// SnapshotWriter: writes a rank's files of one save from many pieces of memory, and digests every
// byte before it is written.
//
// One thread copies pieces into slots of a pool and digests the copies; writer threads write the
// slots and sync the files. Copying may begin before it is known where the files will be. With a
// pool that holds a whole snapshot it never waits for the disk; with a smaller one it goes in
// waves. Pieces that stay unchanged until they are written need no slot where the back-end can
// write them from where they lie. The pool is kept for the next save. Not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/format/chunk_digest.h"
#include "checkpoint/save/file_writers.h"
#include "checkpoint/save/io_backend.h"
#include "common/files/file_system.h"
#include "common/status.h"
#include "common/tensors/box.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

// A box's values, row-major in the file, wherever they lie in memory.
struct WritePiece {
  Dims size;
  StridedView view;
  int64_t element_size = 1;
  // The memory stays as it is until it is written; otherwise only until it is copied.
  bool stable = false;
  int64_t bytes() const { return size.elements() * element_size; }
};

struct FileToWrite {
  std::string path;  // relative to the directory that is given later
  std::string header;
  std::vector<WritePiece> pieces;
  int64_t bytes() const;
};

struct WriteTimes {
  double staged_s = 0;   // until the last piece was copied
  double written_s = 0;  // until the end, without fsync
  double fsync_s = 0;    // spent in fsync, summed over files
};

class SnapshotWriter {
 public:
  // `chunk_bytes`: unit of the digests, of the writes and of the pool. `writers`: threads; with
  // none the thread that calls Write does all of it, and Stage is refused.
  SnapshotWriter(FileSystem& fs, IoBackend backend, int64_t chunk_bytes, int writers = 1);
  ~SnapshotWriter();

  IoBackend backend() const { return backend_; }

  // Makes the pool hold what these files need to be copied at once, at most `cap` bytes of it when
  // given, and touches its pages. kUnavailable when there is no memory.
  Status Reserve(std::span<const FileToWrite> files, std::optional<int64_t> cap);
  int64_t pool_bytes() const;

  // Starts to copy and digest on a thread of its own. `hooks` are called until WriteTo or Abandon
  // has returned. After an error none of them was, and none will be.
  Status Stage(std::vector<FileToWrite> files, WriteHooks hooks);
  bool staging() const { return job_ != nullptr; }
  // Writes the files of the last Stage into `directory`: creates them, writes header and pieces of
  // each, syncs and closes. Returns one digest per file, in order. After an error the files are
  // dead: their names must not be used again.
  Result<std::vector<ChunkedDigest>> WriteTo(const std::string& directory, WriteTimes* times);
  // Ends what Stage began; nothing is written any more.
  void Abandon();

  // Both at once, copying on the calling thread.
  Result<std::vector<ChunkedDigest>> Write(const std::string& directory,
                                           std::vector<FileToWrite> files, WriteHooks hooks,
                                           WriteTimes* times);

 private:
  class Job;
  struct Pool;
  FileSystem& fs_;
  IoBackend backend_;
  int64_t chunk_bytes_;
  int writers_;
  std::unique_ptr<Pool> pool_;
  std::unique_ptr<Job> job_;  // between Stage and its end
};

}  // namespace keel::checkpoint
