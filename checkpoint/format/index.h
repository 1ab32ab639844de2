// Index: where each box of each tensor of a checkpoint lies, and the digest of each chunk of each
// file.
//
// index.bin is a little-endian file of fixed-size records in sorted order (docs/formats/index.md),
// so that opening it costs one pass of bounds checks and finding a tensor a binary search.
// Immutable and thread-safe once parsed.
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "checkpoint/format/chunk_digest.h"
#include "common/status.h"
#include "common/tensors/shard_table.h"

namespace keel {
class WireWriter;
}

namespace keel::checkpoint {

inline constexpr uint32_t kIndexVersion = 1;

// Bytes of a record of each kind; strings come on top.
struct IndexRecordBytes {
  static constexpr int64_t kHeader = 72, kScope = 32, kFile = 40, kTensor = 88, kBox = 120,
                           kChunk = 16;
};

struct IndexFile {
  std::string_view path;  // into the index's bytes
  int64_t size = 0;
  int64_t first_chunk = 0;
  int64_t chunk_count = 0;
};

struct IndexTensor {
  std::string_view name;
  int scope = 0;
  DType dtype = DType::kF32;
  Dims shape;
  int64_t first_box = 0;
  int64_t box_count = 0;
  TensorInfo Info() const { return {std::string(name), dtype, shape}; }
};

struct IndexBox {
  Box box;
  int file = 0;
  int64_t begin = 0;  // bytes from the start of the file
  int64_t bytes = 0;
};

class Index {
 public:
  // Takes the bytes of index.bin. kInvalidData names the record and the rule that it breaks;
  // nothing is read outside `bytes` whatever they hold. `where` stands first in messages.
  static Result<Index> Parse(std::string bytes, std::string_view where);

  const std::string& bytes() const { return bytes_; }  // of index.bin
  int64_t chunk_bytes() const { return chunk_bytes_; }
  int files() const { return static_cast<int>(file_count_); }
  IndexFile file(int i) const;
  Digest128 chunk(const IndexFile& file, int64_t i) const;
  std::vector<Digest128> chunks(const IndexFile& file) const;

  // Scopes are "<role>/model" and "<role>/optimizer", sorted; -1 when there is none of this name.
  int scopes() const { return static_cast<int>(scope_count_); }
  std::string_view scope_name(int scope) const;
  int FindScope(std::string_view name) const;
  // Tensors of a scope are a contiguous, sorted range [first, first + count).
  std::pair<int64_t, int64_t> tensor_range(int scope) const;
  int64_t tensors() const { return tensor_count_; }
  IndexTensor tensor(int64_t i) const;
  // -1 when there is none. `hint` is a record to look at first.
  int64_t FindTensor(int scope, std::string_view name, int64_t hint = -1) const;
  IndexBox box(int64_t i) const;
  int64_t box_begin(int64_t i) const;  // box(i).begin
  int box_file(int64_t i) const;       // box(i).file
  int64_t boxes() const { return box_count_; }
  // For messages: the tensors with a byte in [begin, end) of a file. Scans the index.
  std::vector<std::string> TensorsIn(int file, int64_t begin, int64_t end) const;

 private:
  friend class IndexBuilder;
  std::string_view String(int64_t offset, int64_t size) const;
  Status Check(std::string_view where);
  Status CheckTensors(std::string_view where) const;

  std::string bytes_;
  int64_t chunk_bytes_ = 0;
  int64_t scope_count_ = 0, file_count_ = 0, tensor_count_ = 0, box_count_ = 0, chunk_count_ = 0,
          string_bytes_ = 0;
  int64_t scopes_at_ = 0, files_at_ = 0, tensors_at_ = 0, boxes_at_ = 0, chunks_at_ = 0,
          strings_at_ = 0;
};

// Collects files and boxes in any order and sorts them. Of millions of boxes it keeps each name
// once. Not thread-safe.
class IndexBuilder {
 public:
  explicit IndexBuilder(int64_t chunk_bytes) : chunk_bytes_(chunk_bytes) {}
  void AddFile(std::string path, ChunkedDigest digest);
  // The tensor's number: of one scope and name always the same. `boxes`: so many more are to come.
  int AddTensor(std::string_view scope, const TensorInfo& tensor, size_t boxes = 0);
  // `path` is a file that is added before Build.
  void AddBox(int tensor, const Box& box, std::string_view path, int64_t begin);
  void AddBox(std::string_view scope, const TensorInfo& tensor, const Box& box,
              std::string_view path, int64_t begin) {
    AddBox(AddTensor(scope, tensor), box, path, begin);
  }
  // kInternal when a box names an unknown file, lies outside it, or a tensor differs from itself.
  Result<std::string> Build();

 private:
  struct PendingBox {
    Box box;
    uint32_t path = 0;  // of paths_
    int64_t begin = 0;
  };
  struct PendingTensor {
    std::string scope;
    TensorInfo tensor;
    std::vector<PendingBox> boxes;
  };
  struct PendingFile {
    std::string path;
    ChunkedDigest digest;
  };
  // All but boxes and chunks, of which a large model has hundreds of megabytes. Returns the
  // strings, which come last.
  std::string AddRecords(WireWriter& out) const;
  // By tensor and place; gives their memory back as it goes.
  Status AddBoxRecords(WireWriter& out);

  int64_t chunk_bytes_;
  std::vector<PendingFile> files_;
  std::vector<PendingTensor> tensors_;
  std::unordered_map<std::string, size_t> tensor_ids_;  // by scope, a zero and name
  std::vector<std::string> paths_;                      // that boxes name
  std::unordered_map<std::string, uint32_t> path_ids_;
  uint32_t last_path_ = 0;
  Status problem_;  // the first
};

}  // namespace keel::checkpoint
