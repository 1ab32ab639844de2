// StepReader: reads tensors of one checkpoint directory, and proves every byte it reads.
//
// Opening reads the manifest and the index, compares their digests, and checks that every file is
// there with its size. Reading goes chunk by chunk: a chunk's digest is compared before any byte of
// it reaches a destination. Immutable once opened; reads are thread-safe. Damage is kDataLoss and
// names file, chunk, tensors and step. While it or a copy of it lives, nobody removes the
// checkpoint (lease.h).
#pragma once

#include <cstdint>
#include <functional>
#include <memory>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/index.h"
#include "checkpoint/lease.h"
#include "checkpoint/manifest.h"
#include "common/file_system.h"
#include "common/shard_table.h"
#include "common/transfer_plan.h"

namespace keel::checkpoint {

// What a read asks for: views of tensors of one scope ("actor/model").
struct ReadRequest {
  std::string scope;
  const ShardTable* destination = nullptr;  // views say where values go; they must be dense
  TransferOptions options;
};

struct ReadStats {
  int64_t bytes = 0;  // read from files
  double planned_s = 0;
  double read_s = 0;  // reading, verifying, copying
};

class StepReader {
 public:
  // `directory` is relative to `fs`, which must outlive this.
  static Result<StepReader> Open(const FileSystem& fs, std::string directory);
  // Manifest and index alone: files may be missing or of another size. For those who list damage.
  static Result<StepReader> OpenIndex(const FileSystem& fs, std::string directory);
  // The same from parts that are at hand, during a save, before a manifest exists.
  static StepReader FromIndex(const FileSystem& fs, std::string directory, Index index);

  const std::string& directory() const { return directory_; }
  const Manifest& manifest() const { return manifest_; }
  const Index& index() const { return index_; }
  // Where a file lies, for messages and for reading: "global_step_40/" + path.
  std::string PathOf(std::string_view file) const;

  // One table of whole tensors (no views) of a scope; empty when there is no such scope.
  Result<ShardTable> Tensors(std::string_view scope) const;

  // Reads the boxes into the views, with `threads` reading threads. Chunks of `verify_files` that
  // no box needs are read and verified too. Of all damage the first in file order is reported.
  // kInvalidData, before anything is read, when the checkpoint lacks what a request asks for.
  Result<ReadStats> Read(std::span<const ReadRequest> requests, const std::set<int>& verify_files,
                         int threads) const;

  // Reads and verifies whole files, all when `files` is empty; every damaged chunk is reported, and
  // of a file that is missing or of another size, that.
  struct Damage {
    std::string file;
    int64_t chunk = -1;   // -1: the file as a whole
    std::string message;  // names directory, file, chunk and tensors
  };
  Result<std::vector<Damage>> VerifyFiles(std::span<const int> files, int threads,
                                          int64_t* bytes) const;

  // A whole file in order, verified, a chunk at a time; stops at the first error of `sink`.
  Status StreamFile(std::string_view path,
                    const std::function<Status(std::span<const std::byte>)>& sink) const;

  // A small file, verified.
  Result<std::string> ReadText(std::string_view path, int64_t max_bytes) const;

  // Index of a file in index(), or -1.
  int FindFile(std::string_view path) const;

 private:
  StepReader(const FileSystem& fs, std::string directory)
      : fs_(&fs), directory_(std::move(directory)) {}
  std::string HeldIn(int file_id, int64_t begin, int64_t end) const;
  Status CheckFile(const ManifestFile& file) const;
  Status ReadChunk(const File& file, int file_id, int64_t chunk, std::span<std::byte> buffer,
                   int64_t* got) const;

  const FileSystem* fs_;
  std::string directory_;
  Lease lease_;
  Manifest manifest_;
  Index index_;
};

}  // namespace keel::checkpoint
