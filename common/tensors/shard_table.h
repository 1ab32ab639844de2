// ShardTable: what one rank (or one file) holds of which canonical tensor.
//
// Every tensor that matters has one canonical name and global shape, the Hugging Face ones;
// optimizer entries are "optimizer.{master,exp_avg,exp_avg_sq}.<name>". A shard is a box of such a
// tensor and the strided memory that holds it. Padding is in no box; fused storage appears as
// several shards.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/tensors/box.h"
#include "common/tensors/dtype.h"

namespace keel {

// A canonical tensor: identical on every rank that mentions it.
struct TensorInfo {
  std::string name;
  DType dtype = DType::kF32;
  Dims shape;
  friend bool operator==(const TensorInfo& a, const TensorInfo& b) = default;
};

// Memory of a box, row-major order of the box's dims with these strides (in elements, >= 0).
// Owns nothing; null in tables that only describe.
struct StridedView {
  std::byte* data = nullptr;
  Dims strides;
};

struct Shard {
  int tensor = 0;  // index into ShardTable::tensors()
  Box box;
  int replica = 0;  // 0 is the one that is preferred for writing; > 0 hold the same values
  StridedView view;
};

class ShardTable {
 public:
  // Adds a box; the tensor is added on first mention. kInternal, and the table is as it was, when
  // the tensor was mentioned with another dtype or shape, the box lies outside, the table has this
  // very box already, or its boxes would be more than 2^62 bytes.
  Status Add(const TensorInfo& tensor, const Box& box, StridedView view = {}, int replica = 0);
  // All shards of `other`, likewise.
  Status Append(const ShardTable& other);

  const std::vector<TensorInfo>& tensors() const { return tensors_; }
  const std::vector<Shard>& shards() const { return shards_; }
  const TensorInfo& tensor_of(const Shard& shard) const {
    return tensors_[static_cast<size_t>(shard.tensor)];
  }
  // Index into tensors(), or -1.
  int Find(std::string_view name) const;
  // Index into shards() of this very box of this tensor, or -1. Takes as long whatever the table's
  // size.
  int FindShard(std::string_view name, const Box& box) const;
  // Bytes of all shards (replicas counted as often as they appear).
  int64_t bytes() const { return bytes_; }
  // The same tensors and boxes without memory.
  ShardTable WithoutViews() const;
  // XXH3-64 over names, dtypes, shapes, boxes and replicas, in order: the key of cached plans.
  uint64_t Fingerprint() const;
  // The table as bytes for a peer (views are not sent), and back. kInvalidData on malformed input:
  // what is taken gives the same bytes again.
  std::string Serialize() const;
  static Result<ShardTable> Deserialize(std::string_view bytes);

 private:
  // The slot of `names_` where this name stands, or of `boxes_` where this box of this tensor does;
  // or the empty one where it belongs.
  size_t SlotOfName(std::string_view name) const;
  size_t SlotOfBox(int tensor, const Box& box) const;
  void GrowSlots();
  // Add to the tensor of this index, or to one that comes after all.
  Status AddTo(int index, const TensorInfo& tensor, const Box& box, const StridedView& view,
               int replica);

  std::vector<TensorInfo> tensors_;
  std::vector<Shard> shards_;
  // Open addressing, at most half full: indexes into tensors_ and shards_, -1 where empty. Find
  // what is there already in a table of a million.
  std::vector<int32_t> names_;
  std::vector<int32_t> boxes_;
  int64_t bytes_ = 0;
};

// Copies `box` (global coordinates) between two views of shards that contain it. Both element sizes
// are `element_size`. The longest contiguous runs are copied with memcpy.
void CopyBox(const Box& box, const Box& source_box, const StridedView& source, const Box& dest_box,
             const StridedView& dest, int64_t element_size);

}  // namespace keel
