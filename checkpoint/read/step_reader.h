// StepReader: reads tensors of one checkpoint directory, and proves every byte it reads.
//
// Opening reads the manifest and the index, compares their digests, and checks that every file is
// there with its size; with another rank's word for that, each file is looked at when it is read.
// Reading goes chunk by chunk, and is good only when it returns success: bytes reach their
// destination before the digest of their chunk was compared, and before what a file's header says
// of its tensors was compared with the index. Immutable once opened; reads are thread-safe. Damage
// is kDataLoss and names file, chunk, tensors and step. While it or a copy of it lives, nobody
// removes the checkpoint (lease.h).
#pragma once

#include <chrono>
#include <cstdint>
#include <deque>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/format/index.h"
#include "checkpoint/format/manifest.h"
#include "checkpoint/read/header_check.h"
#include "checkpoint/read/read_plan.h"
#include "checkpoint/run/lease.h"
#include "common/files/file_system.h"
#include "common/hash.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

struct ReadStats {
  int64_t bytes = 0;     // read from files
  int64_t received = 0;  // from other ranks
  double planned_s = 0;
  double read_s = 0;  // reading, verifying, exchanging, copying
};

struct ChunkId {
  int file = 0;
  int64_t chunk = 0;
};

class StepReader {
 public:
  // `directory` is relative to `fs`, which must outlive this.
  static Result<StepReader> Open(const FileSystem& fs, std::string directory);
  // Manifest and index alone: files may be missing or of another size. For those who list damage.
  static Result<StepReader> OpenIndex(const FileSystem& fs, std::string directory);
  // What is in manifest.json and index.bin.
  struct Texts {
    std::string manifest;
    std::string index;
  };
  // The same from what another rank has read, which holds the lease for all. `grace`: how long a
  // file that is missing, or of another size, is looked for again: network file systems show new
  // files late.
  static Result<StepReader> FromTexts(const FileSystem& fs, std::string directory, Texts texts,
                                      std::chrono::milliseconds grace);
  // The same from parts that are at hand, during a save, before a manifest exists.
  static StepReader FromIndex(const FileSystem& fs, std::string directory, Index index);

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  const std::string& manifest_text() const { return manifest_text_; }
  const Index& index() const { return index_; }
  // Returns where a file lies, for messages and for reading: "global_step_40/" + path.
  std::string PathOf(std::string_view file) const;

  // One table of whole tensors (no views) of a scope; empty when there is no such scope.
  Result<ShardTable> Tensors(std::string_view scope) const;

  // Reads the boxes into the views, with `threads` reading threads. Of all damage the first in file
  // order is reported. kInvalidData, before anything is read, when the checkpoint lacks what a
  // request asks for.
  Result<ReadStats> Read(std::span<const ReadRequest> requests, int threads) const;

  // Reads these chunks, in file order, and copies what `plan` (over index()) wants of them. Returns
  // the bytes read.
  Result<int64_t> ReadChunks(const ReadPlan& plan, std::span<const ChunkId> chunks,
                             int threads) const;

  // Reads and verifies whole files, all when `files` is empty; every damaged chunk is reported, and
  // of a file that is missing, of another size, or closed to this process, that. kExhausted where
  // this process is short of what it takes to look, which says nothing of the files.
  struct Damage {
    std::string file;
    int64_t chunk = -1;   // -1: the file as a whole
    std::string message;  // names directory, file, chunk and tensors
    bool denied = false;  // not read for want of permission, so that nothing is known of it
  };
  Result<std::vector<Damage>> VerifyFiles(std::span<const int> files, int threads,
                                          int64_t* bytes) const;

  // A whole file in order, verified, a chunk at a time; stops at the first error of `sink`.
  Status StreamFile(std::string_view path,
                    const std::function<Status(std::span<const std::byte>)>& sink) const;

  // A whole file in memory, verified. It has no limit but the size that the manifest lists: what a
  // save wrote can be read.
  Result<std::string> ReadText(std::string_view path) const;

  // Another index of the same files; plans that were made over the one before are void.
  void ReplaceIndex(Index index);

  // Index of a file in index(), or -1.
  int FindFile(std::string_view path) const;

  // For readers of single chunks. A thread's own block of memory, and its digest.
  struct Scratch {
    std::vector<std::byte> block;
    Hasher128 hasher;
    bool other_header = false;  // than the index expects, in the chunk that is being read
  };
  // A chunk is read and digested in blocks that stay in a core's own cache; the last of a chunk may
  // be shorter.
  static constexpr int64_t kBlockBytes = int64_t{256} << 10;
  // Where the block that begins at `at` of the chunk is read to; null: to the scratch block.
  using BlockPlace = std::function<Result<std::byte*>(int64_t at)>;
  // Sees each block before the digest is known; `at` counts from the start of the chunk.
  using BlockSink = std::function<Status(int64_t at, std::span<const std::byte> block)>;
  // Reads a chunk and compares its digest. Without `place` all goes to the scratch block. A failure
  // of either ends it.
  Status ReadChunk(const File& file, ChunkId id, Scratch* scratch, const BlockPlace& place,
                   const BlockSink& sink) const;
  // Reads a chunk, and copies what `plan` wants of it. `later`: announced to the disk, if any.
  // `between` is called after each block.
  class OpenFiles;
  Status ReadChunkTo(const ReadPlan& plan, OpenFiles* files, ChunkId id, const ChunkId* later,
                     Scratch* scratch, const std::function<void()>& between = nullptr) const;
  // See FromTexts.
  void set_grace(std::chrono::milliseconds grace) { grace_ = grace; }
  // Files of the checkpoint that are open, a few dozen at most. Thread-safe.
  class OpenFiles {
   public:
    explicit OpenFiles(const StepReader& reader) : reader_(reader) {}
    Result<std::shared_ptr<const File>> Get(int file);

   private:
    const StepReader& reader_;
    std::mutex mutex_;
    std::deque<std::pair<int, std::shared_ptr<const File>>> files_;  // the newest last
  };
  // Announces chunk `later` to the disk if it is of the same file as `now`.
  void Prefetch(const File& file, ChunkId now, ChunkId later) const;
  // First byte of a chunk in its file, and its bytes.
  std::pair<int64_t, int64_t> RangeOf(ChunkId id) const;

 private:
  StepReader(const FileSystem& fs, std::string directory)
      : fs_(&fs), directory_(std::move(directory)) {}
  std::string HeldIn(int file_id, int64_t begin, int64_t end) const;
  // What holds of both texts, whoever has read them.
  Status Adopt(Texts texts);
  Status CheckFile(const ManifestFile& file) const;
  Status CheckSize(std::string_view path, int64_t found, int64_t listed) const;
  Result<std::unique_ptr<File>> OpenFile(int file) const;
  Status ReadBlock(const File& file, ChunkId id, int64_t at, Scratch* scratch,
                   const BlockPlace& place, const BlockSink& sink) const;
  std::string DescribeChunk(ChunkId id) const;
  // Called for a file whose header is not, byte for byte, the one that Keel writes for the index.
  Status CompareHeader(int file) const;

  const FileSystem* fs_;
  std::string directory_;
  Lease lease_;
  std::string manifest_text_;
  Manifest manifest_;
  Index index_;
  std::shared_ptr<HeaderCheck> headers_ = std::make_shared<HeaderCheck>();  // with the index
  std::chrono::milliseconds grace_{0};
};

}  // namespace keel::checkpoint
