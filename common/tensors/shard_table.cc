#include "common/tensors/shard_table.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <bit>
#include <cstring>
#include <limits>
#include <utility>

#include "common/hash.h"
#include "common/text.h"
#include "common/wire.h"

namespace keel {

namespace {

constexpr int64_t kMaxBytes = int64_t{1} << 62;

}  // namespace

size_t ShardTable::SlotOfName(std::string_view name) const {
  size_t slot = Hash64(name) & (names_.size() - 1);
  while (names_[slot] >= 0 && tensors_[static_cast<size_t>(names_[slot])].name != name)
    slot = (slot + 1) & (names_.size() - 1);
  return slot;
}

size_t ShardTable::SlotOfBox(int tensor, const Box& box) const {
  std::array<int64_t, 1 + 2 * kMaxDims> key{};
  size_t used = 0;
  key[used++] = tensor;
  for (const int64_t value : box.offset) key[used++] = value;
  for (const int64_t value : box.size) key[used++] = value;
  const std::string_view bytes(reinterpret_cast<const char*>(key.data()), used * sizeof(int64_t));
  size_t slot = Hash64(bytes) & (boxes_.size() - 1);
  for (; boxes_[slot] >= 0; slot = (slot + 1) & (boxes_.size() - 1)) {
    const Shard& shard = shards_[static_cast<size_t>(boxes_[slot])];
    if (shard.tensor == tensor && shard.box == box) break;
  }
  return slot;
}

void ShardTable::GrowSlots() {
  const auto grows = [](std::vector<int32_t>* slots, size_t filled) {
    if (slots->size() >= 2 * (filled + 1)) return false;
    slots->assign(std::max<size_t>(16, std::bit_ceil(4 * filled)), -1);
    return true;
  };
  if (grows(&names_, tensors_.size())) {
    for (size_t i = 0; i < tensors_.size(); ++i)
      names_[SlotOfName(tensors_[i].name)] = static_cast<int32_t>(i);
  }
  if (grows(&boxes_, shards_.size())) {
    for (size_t i = 0; i < shards_.size(); ++i)
      boxes_[SlotOfBox(shards_[i].tensor, shards_[i].box)] = static_cast<int32_t>(i);
  }
}

Status ShardTable::Add(const TensorInfo& tensor, const Box& box, StridedView view, int replica) {
  return AddTo(Find(tensor.name), tensor, box, view, replica);
}

Status ShardTable::AddTo(int index, const TensorInfo& tensor, const Box& box,
                         const StridedView& view, int replica) {
  const auto refuse = [&](const std::string& why) {
    return Status(StatusCode::kInternal, fmt::format("{}: {}", Printable(tensor.name), why));
  };
  if (!box.Within(tensor.shape)) {
    return refuse(
        fmt::format("box {} lies outside shape {}", box.ToString(), tensor.shape.ToString()));
  }
  const Result<int64_t> elements = CheckedElements(box.size);
  if (!elements.ok() || *elements > (kMaxBytes - bytes_) / DTypeSize(tensor.dtype)) {
    return refuse(fmt::format("with box {} the table has more than 2^62 bytes", box.ToString()));
  }
  if (index >= 0 && !(tensors_[static_cast<size_t>(index)] == tensor)) {
    const TensorInfo& known = tensors_[static_cast<size_t>(index)];
    return refuse(fmt::format("mentioned as {}{} and as {}{}", DTypeName(known.dtype),
                              known.shape.ToString(), DTypeName(tensor.dtype),
                              tensor.shape.ToString()));
  }
  GrowSlots();
  const size_t slot = SlotOfBox(index < 0 ? static_cast<int>(tensors_.size()) : index, box);
  if (boxes_[slot] >= 0)
    return refuse(fmt::format("box {} is in the table already", box.ToString()));
  if (index < 0) {
    index = static_cast<int>(tensors_.size());
    names_[SlotOfName(tensor.name)] = index;
    tensors_.push_back(tensor);
  }
  boxes_[slot] = static_cast<int32_t>(shards_.size());
  shards_.push_back({index, box, replica, view});
  bytes_ += *elements * DTypeSize(tensor.dtype);
  return Status::Ok();
}

Status ShardTable::Append(const ShardTable& other) {
  for (const Shard& shard : other.shards_) {
    KEEL_RETURN_IF_ERROR(Add(other.tensor_of(shard), shard.box, shard.view, shard.replica));
  }
  return Status::Ok();
}

int ShardTable::Find(std::string_view name) const {
  return names_.empty() ? -1 : names_[SlotOfName(name)];
}

int ShardTable::FindShard(std::string_view name, const Box& box) const {
  const int tensor = Find(name);
  return tensor < 0 ? -1 : boxes_[SlotOfBox(tensor, box)];
}

ShardTable ShardTable::WithoutViews() const {
  ShardTable copy = *this;
  for (Shard& shard : copy.shards_) shard.view = {};
  return copy;
}

uint64_t ShardTable::Fingerprint() const { return Hash64(Serialize()); }

namespace {

void Put(const Dims& dims, WireWriter& out) { out.I64(dims.size()).Pods(dims); }

class TableReader {
 public:
  explicit TableReader(std::string_view bytes) : in_(bytes), total_(bytes.size()) {}
  int64_t Int() {
    int64_t value = 0;
    return in_.I64(&value) ? value : Fail("an integer of 8 bytes");
  }
  std::string Text() {
    std::string_view text;
    if (!in_.Raw(static_cast<uint64_t>(Int()), &text)) Fail("a text that ends in the table");
    return std::string(text);
  }
  Dims List() {
    const int64_t size = Int();
    if (size < 0 || size > kMaxDims) {
      Fail("a number of dims");
      return {};
    }
    Dims dims = Dims::Filled(static_cast<int>(size), 0);
    for (int i = 0; i < dims.size(); ++i) dims[i] = Int();
    return dims;
  }
  // An integer in [0, limit].
  int64_t Below(int64_t limit, std::string_view expected) {
    const int64_t value = Int();
    return value < 0 || value > limit ? Fail(expected) : value;
  }
  // A count of things that take at least `bytes_each` bytes.
  int64_t Count(int64_t bytes_each) {
    const int64_t count = Int();
    if (count < 0 || count > static_cast<int64_t>(in_.remaining()) / bytes_each)
      return Fail("a count of what follows");
    return count;
  }
  // The first thing that was not as expected is what the message names; nothing is read after it.
  int64_t Fail(std::string_view expected) {
    if (ok()) {
      problem_ = fmt::format("malformed shard table of {} bytes: expected {} before byte {}",
                             total_, expected, total_ - in_.remaining());
    }
    in_ = WireReader(std::string_view());
    return 0;
  }
  bool ok() const { return problem_.empty(); }
  bool at_end() const { return in_.AtEnd(); }
  Status status() const { return ok() ? Status::Ok() : Status(StatusCode::kInvalidData, problem_); }

 private:
  WireReader in_;
  size_t total_;
  std::string problem_;
};

}  // namespace

std::string ShardTable::Serialize() const {
  // Names of medium length and matrices; more only takes longer.
  WireWriter out;
  out.Reserve(16 + tensors_.size() * 88 + shards_.size() * 64);
  out.Count(tensors_.size());
  for (const TensorInfo& tensor : tensors_) {
    out.Text(tensor.name).I64(static_cast<int64_t>(tensor.dtype));
    Put(tensor.shape, out);
  }
  out.Count(shards_.size());
  for (const Shard& shard : shards_) {
    out.I64(shard.tensor);
    Put(shard.box.offset, out);
    Put(shard.box.size, out);
    out.I64(shard.replica);
  }
  return std::move(out).Take();
}

Result<ShardTable> ShardTable::Deserialize(std::string_view bytes) {
  TableReader reader(bytes);
  ShardTable table;
  const int64_t tensors = reader.Count(24);
  std::vector<TensorInfo> infos;
  infos.reserve(static_cast<size_t>(tensors));
  for (int64_t i = 0; i < tensors && reader.ok(); ++i) {
    TensorInfo info;
    info.name = reader.Text();
    info.dtype = static_cast<DType>(reader.Below(static_cast<int64_t>(DType::kU64), "a dtype"));
    info.shape = reader.List();
    if (!CheckedElements(info.shape).ok()) reader.Fail("a shape");
    infos.push_back(std::move(info));
  }
  const int64_t shards = reader.Count(32);
  table.tensors_.reserve(infos.size());
  table.shards_.reserve(static_cast<size_t>(shards));
  for (int64_t i = 0; i < shards && reader.ok(); ++i) {
    const int64_t tensor = reader.Below(static_cast<int64_t>(infos.size()) - 1, "a tensor's index");
    Box box;
    box.offset = reader.List();
    box.size = reader.List();
    const int64_t replica = reader.Below(std::numeric_limits<int>::max(), "a replica's index");
    if (!reader.ok()) break;
    const TensorInfo& info = infos[static_cast<size_t>(tensor)];
    const auto known = static_cast<int64_t>(table.tensors_.size());
    if (tensor > known) reader.Fail("the tensors in the order of their first shards");
    const int index = tensor < known ? static_cast<int>(tensor) : table.Find(info.name);
    const Status added = table.AddTo(index, info, box, {}, static_cast<int>(replica));
    if (!added.ok()) {
      return Status(StatusCode::kInvalidData, "malformed shard table: " + added.message());
    }
  }
  if (!reader.at_end()) reader.Fail("its end");
  if (table.tensors_.size() != infos.size())
    reader.Fail("the tensors in the order of their first shards");
  KEEL_RETURN_IF_ERROR(reader.status());
  return table;
}

namespace {

// A dim of a copy.
struct Loop {
  int64_t count = 1;
  int64_t from_step = 0;  // bytes
  int64_t to_step = 0;
};

// Elements of two dims, neither of which is contiguous on both sides: tile by tile, so that what is
// near on either side is used while it is in the cache.
template <typename T>
void CopyTiles(const std::byte* from, std::byte* to, const Loop& inner, const Loop& outer) {
  constexpr int64_t kTile = 32;
  for (int64_t o = 0; o < outer.count; o += kTile) {
    for (int64_t i = 0; i < inner.count; i += kTile) {
      for (int64_t y = o; y < std::min(o + kTile, outer.count); ++y) {
        const std::byte* const row_from = from + y * outer.from_step;
        std::byte* const row_to = to + y * outer.to_step;
        for (int64_t x = i; x < std::min(i + kTile, inner.count); ++x)
          std::memcpy(row_to + x * inner.to_step, row_from + x * inner.from_step, sizeof(T));
      }
    }
  }
}

using TileCopier = void (*)(const std::byte*, std::byte*, const Loop&, const Loop&);
TileCopier TileCopierOf(int64_t element_size) {
  if (element_size == 2) return CopyTiles<uint16_t>;
  if (element_size == 4) return CopyTiles<uint32_t>;
  if (element_size == 8) return CopyTiles<uint64_t>;
  return nullptr;
}

}  // namespace

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
  // Inner dims that are contiguous on both sides make one run; dims of one element are no step.
  std::array<Loop, kMaxDims> loops;  // innermost first
  size_t outer = 0;
  int64_t run = 1;
  for (int i = dims - 1; i >= 0; --i) {
    if (box.size[i] == 1) continue;
    if (outer == 0 && source.strides[i] == run && dest.strides[i] == run) {
      run *= box.size[i];
    } else {
      loops[outer++] = {box.size[i], source.strides[i] * element_size,
                        dest.strides[i] * element_size};
    }
  }
  const auto bytes = static_cast<size_t>(run * element_size);
  const TileCopier tiles = run == 1 && outer >= 2 ? TileCopierOf(element_size) : nullptr;
  std::array<int64_t, kMaxDims> at{};
  while (true) {
    if (tiles != nullptr) {
      tiles(from, to, loops[0], loops[1]);
    } else {
      std::memcpy(to, from, bytes);
    }
    size_t d = tiles != nullptr ? 2 : 0;
    for (; d < outer; ++d) {
      from += loops[d].from_step;
      to += loops[d].to_step;
      if (++at[d] < loops[d].count) break;
      from -= loops[d].from_step * loops[d].count;
      to -= loops[d].to_step * loops[d].count;
      at[d] = 0;
    }
    if (d == outer) return;
  }
}

}  // namespace keel
