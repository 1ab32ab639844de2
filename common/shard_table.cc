#include "common/shard_table.h"

#include <algorithm>
#include <cstring>

#include "common/hash.h"

namespace keel {

Status ShardTable::Add(const TensorInfo& tensor, const Box& box, StridedView view, int replica) {
  if (!box.Within(tensor.shape)) {
    return Status(StatusCode::kInternal, tensor.name + ": box " + box.ToString() +
                                             " lies outside shape " + tensor.shape.ToString());
  }
  int index = Find(tensor.name);
  if (index < 0) {
    index = static_cast<int>(tensors_.size());
    tensors_.push_back(tensor);
    by_name_.emplace(tensor.name, index);
  } else if (!(tensors_[static_cast<size_t>(index)] == tensor)) {
    const TensorInfo& known = tensors_[static_cast<size_t>(index)];
    return Status(StatusCode::kInternal,
                  tensor.name + ": mentioned as " + std::string(DTypeName(known.dtype)) +
                      known.shape.ToString() + " and as " + std::string(DTypeName(tensor.dtype)) +
                      tensor.shape.ToString());
  }
  for (auto it = shards_.rbegin(); it != shards_.rend(); ++it) {
    if (it->tensor == index && it->box == box) {
      return Status(StatusCode::kInternal,
                    tensor.name + ": box " + box.ToString() + " is in the table already");
    }
    // Boxes of one tensor stand together in every table built in order; stop at the first stranger.
    if (it->tensor != index) break;
  }
  shards_.push_back({index, box, replica, view});
  return Status::Ok();
}

Status ShardTable::Append(const ShardTable& other) {
  for (const Shard& shard : other.shards_) {
    KEEL_RETURN_IF_ERROR(Add(other.tensor_of(shard), shard.box, shard.view, shard.replica));
  }
  return Status::Ok();
}

int ShardTable::Find(std::string_view name) const {
  const auto it = by_name_.find(name);
  return it == by_name_.end() ? -1 : it->second;
}

int64_t ShardTable::bytes() const {
  int64_t sum = 0;
  for (const Shard& shard : shards_)
    sum += shard.box.elements() * DTypeSize(tensor_of(shard).dtype);
  return sum;
}

ShardTable ShardTable::WithoutViews() const {
  ShardTable copy = *this;
  for (Shard& shard : copy.shards_) shard.view = {};
  return copy;
}

uint64_t ShardTable::Fingerprint() const { return Hash64(Serialize()); }

namespace {

// Little-endian integers and length-prefixed strings.
class ByteWriter {
 public:
  void Int(int64_t value) {
    for (int i = 0; i < 8; ++i)
      out_.push_back(static_cast<char>(static_cast<uint64_t>(value) >> (8 * i)));
  }
  void Text(std::string_view text) {
    Int(static_cast<int64_t>(text.size()));
    out_.append(text);
  }
  void List(const Dims& dims) {
    Int(dims.size());
    for (int64_t value : dims) Int(value);
  }
  std::string Take() { return std::move(out_); }

 private:
  std::string out_;
};

class ByteReader {
 public:
  explicit ByteReader(std::string_view bytes) : bytes_(bytes) {}
  int64_t Int() {
    if (bytes_.size() < 8) return Fail();
    uint64_t value = 0;
    for (size_t i = 0; i < 8; ++i)
      value |= uint64_t{static_cast<unsigned char>(bytes_[i])} << (8 * i);
    bytes_.remove_prefix(8);
    return static_cast<int64_t>(value);
  }
  std::string Text() {
    const int64_t size = Int();
    if (size < 0 || static_cast<uint64_t>(size) > bytes_.size()) {
      Fail();
      return {};
    }
    std::string text(bytes_.substr(0, static_cast<size_t>(size)));
    bytes_.remove_prefix(static_cast<size_t>(size));
    return text;
  }
  Dims List() {
    const int64_t size = Int();
    if (size < 0 || size > kMaxDims) {
      Fail();
      return {};
    }
    Dims dims = Dims::Filled(static_cast<int>(size), 0);
    for (int i = 0; i < dims.size(); ++i) dims[i] = Int();
    return dims;
  }
  // A count of things that take at least `bytes_each` bytes.
  int64_t Count(int64_t bytes_each) {
    const int64_t count = Int();
    if (count < 0 || count > static_cast<int64_t>(bytes_.size()) / bytes_each) return Fail();
    return count;
  }
  bool ok() const { return ok_; }
  bool at_end() const { return bytes_.empty(); }

 private:
  int64_t Fail() {
    ok_ = false;
    bytes_ = {};
    return 0;
  }
  std::string_view bytes_;
  bool ok_ = true;
};

}  // namespace

std::string ShardTable::Serialize() const {
  ByteWriter writer;
  writer.Int(static_cast<int64_t>(tensors_.size()));
  for (const TensorInfo& tensor : tensors_) {
    writer.Text(tensor.name);
    writer.Int(static_cast<int64_t>(tensor.dtype));
    writer.List(tensor.shape);
  }
  writer.Int(static_cast<int64_t>(shards_.size()));
  for (const Shard& shard : shards_) {
    writer.Int(shard.tensor);
    writer.List(shard.box.offset);
    writer.List(shard.box.size);
    writer.Int(shard.replica);
  }
  return writer.Take();
}

Result<ShardTable> ShardTable::Deserialize(std::string_view bytes) {
  const Status malformed(StatusCode::kInvalidData, "malformed shard table");
  ByteReader reader(bytes);
  ShardTable table;
  const int64_t tensors = reader.Count(24);
  std::vector<TensorInfo> infos;
  for (int64_t i = 0; i < tensors && reader.ok(); ++i) {
    TensorInfo info;
    info.name = reader.Text();
    const int64_t dtype = reader.Int();
    if (dtype < 0 || dtype > static_cast<int64_t>(DType::kU64)) return malformed;
    info.dtype = static_cast<DType>(dtype);
    info.shape = reader.List();
    if (!CheckedElements(info.shape).ok()) return malformed;
    infos.push_back(std::move(info));
  }
  const int64_t shards = reader.Count(32);
  for (int64_t i = 0; i < shards && reader.ok(); ++i) {
    const int64_t tensor = reader.Int();
    Box box;
    box.offset = reader.List();
    box.size = reader.List();
    const int64_t replica = reader.Int();
    if (!reader.ok() || tensor < 0 || tensor >= static_cast<int64_t>(infos.size()))
      return malformed;
    const Status added =
        table.Add(infos[static_cast<size_t>(tensor)], box, {}, static_cast<int>(replica));
    if (!added.ok()) return Status(StatusCode::kInvalidData, added.message());
  }
  if (!reader.ok() || !reader.at_end()) return malformed;
  return table;
}

void CopyBox(const Box& box, const Box& source_box, const StridedView& source, const Box& dest_box,
             const StridedView& dest, int64_t element_size) {
  if (box.empty()) return;
  const std::byte* from = source.data;
  std::byte* to = dest.data;
  const int dims = box.dims();
  for (int i = 0; i < dims; ++i) {
    from += (box.offset[i] - source_box.offset[i]) * source.strides[i] * element_size;
    to += (box.offset[i] - dest_box.offset[i]) * dest.strides[i] * element_size;
  }
  // Inner dims that are contiguous on both sides make one run.
  int outer = dims;
  int64_t run = 1;
  while (outer > 0 && source.strides[outer - 1] == run && dest.strides[outer - 1] == run) {
    run *= box.size[outer - 1];
    --outer;
  }
  const auto bytes = static_cast<size_t>(run * element_size);
  Dims at = Dims::Filled(outer, 0);
  while (true) {
    std::memcpy(to, from, bytes);
    int d = outer - 1;
    for (; d >= 0; --d) {
      from += source.strides[d] * element_size;
      to += dest.strides[d] * element_size;
      if (++at[d] < box.size[d]) break;
      from -= source.strides[d] * box.size[d] * element_size;
      to -= dest.strides[d] * box.size[d] * element_size;
      at[d] = 0;
    }
    if (d < 0) return;
  }
}

}  // namespace keel
