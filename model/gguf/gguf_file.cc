#include "model/gguf/gguf_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <utility>

#include "common/text.h"

namespace keel::model {

namespace {

static_assert(std::endian::native == std::endian::little);

constexpr uint32_t kMagic = 0x46554747;  // "GGUF"
constexpr int64_t kMostKeys = 1 << 16;
constexpr int64_t kMostTensors = 1 << 20;
constexpr int64_t kMostKeyLength = 1 << 16;  // the format's own
constexpr int64_t kMostTensorName = 1 << 10;
constexpr int64_t kMostAlignment = 1 << 20;
constexpr int64_t kDefaultAlignment = 32;
constexpr int64_t kWindow = int64_t{1} << 20;

// 0 of types without one.
int64_t SizeOf(GgufType type) {
  switch (type) {
    case GgufType::kUint8:
    case GgufType::kInt8:
    case GgufType::kBool:
      return 1;
    case GgufType::kUint16:
    case GgufType::kInt16:
      return 2;
    case GgufType::kUint32:
    case GgufType::kInt32:
    case GgufType::kFloat32:
      return 4;
    case GgufType::kUint64:
    case GgufType::kInt64:
    case GgufType::kFloat64:
      return 8;
    case GgufType::kString:
    case GgufType::kArray:
      return 0;
  }
  return 0;
}

// Reads the file from its start, a window at a time, and never past its end.
class Cursor {
 public:
  Cursor(const File& file, int64_t size, std::string_view where)
      : file_(file), size_(size), where_(where) {}

  int64_t position() const { return position_; }
  int64_t left() const { return size_ - position_; }

  Status Read(void* to, int64_t bytes, std::string_view what) {
    if (bytes > left()) {
      return Bad(fmt::format("ends in {}: {} bytes are missing", what, bytes - left()));
    }
    auto* out = static_cast<char*>(to);
    while (bytes > 0) {
      if (position_ < begin_ || position_ >= begin_ + std::ssize(window_)) {
        KEEL_RETURN_IF_ERROR(Fill());
      }
      const int64_t at = position_ - begin_;
      const int64_t part = std::min(bytes, std::ssize(window_) - at);
      std::memcpy(out, window_.data() + at, static_cast<size_t>(part));
      out += part;
      bytes -= part;
      position_ += part;
    }
    return Status::Ok();
  }
  template <typename Number>
  Result<Number> Get(std::string_view what) {
    Number number{};
    KEEL_RETURN_IF_ERROR(Read(&number, sizeof(number), what));
    return number;
  }
  // A count or length, which cannot be above `most`.
  Result<int64_t> Count(std::string_view what, int64_t most) {
    KEEL_ASSIGN_OR_RETURN(const uint64_t count, Get<uint64_t>(what));
    if (count > static_cast<uint64_t>(most))
      return Bad(fmt::format("{}: {}, at most {} are possible", what, count, most));
    return static_cast<int64_t>(count);
  }
  Result<std::string> String(std::string_view what, int64_t most) {
    KEEL_ASSIGN_OR_RETURN(const int64_t length,
                          Count(fmt::format("the length of {}", what), std::min(most, left())));
    std::string text(static_cast<size_t>(length), '\0');
    KEEL_RETURN_IF_ERROR(Read(text.data(), length, what));
    return text;
  }
  Status Bad(std::string_view problem) const {
    return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where_, problem));
  }

 private:
  Status Fill() {
    window_.resize(static_cast<size_t>(std::min(kWindow, left())));
    begin_ = position_;
    KEEL_ASSIGN_OR_RETURN(const int64_t read,
                          file_.ReadAt(position_, std::as_writable_bytes(std::span(window_))));
    if (read == std::ssize(window_)) return Status::Ok();
    window_.clear();
    return Bad("became shorter while it was read");
  }

  const File& file_;
  int64_t size_;
  std::string_view where_;
  int64_t position_ = 0;
  int64_t begin_ = 0;
  std::vector<char> window_;
};

Result<GgufType> ReadType(Cursor& in, const std::string& what) {
  KEEL_ASSIGN_OR_RETURN(const uint32_t number, in.Get<uint32_t>(what));
  if (number > static_cast<uint32_t>(GgufType::kFloat64))
    return in.Bad(fmt::format("{}: {} is no type of GGUF", what, number));
  return static_cast<GgufType>(number);
}

Result<GgufValue> ReadValue(Cursor& in, const std::string& key) {
  const std::string what = fmt::format("key {}", key);
  GgufValue value;
  KEEL_ASSIGN_OR_RETURN(value.type, ReadType(in, what + ": its type"));
  if (value.type == GgufType::kArray) {
    value.is_array = true;
    KEEL_ASSIGN_OR_RETURN(value.type, ReadType(in, what + ": its elements' type"));
    if (value.type == GgufType::kArray)
      return in.Bad(what + ": an array of arrays, which Keel does not read");
    // A string has 8 bytes at least.
    const int64_t least = std::max<int64_t>(SizeOf(value.type), 1);
    const int64_t element = value.type == GgufType::kString ? 8 : least;
    KEEL_ASSIGN_OR_RETURN(value.count, in.Count(what + ": its elements", in.left() / element));
  }
  if (value.type == GgufType::kString) {
    value.strings.reserve(static_cast<size_t>(value.count));
    for (int64_t i = 0; i < value.count; ++i) {
      KEEL_ASSIGN_OR_RETURN(std::string text, in.String(what, in.left()));
      value.strings.push_back(std::move(text));
    }
    return value;
  }
  const int64_t bytes = value.count * SizeOf(value.type);
  if (bytes > in.left()) return in.Bad(fmt::format("ends in {}", what));
  value.numbers.resize(static_cast<size_t>(bytes));
  KEEL_RETURN_IF_ERROR(in.Read(value.numbers.data(), bytes, what));
  return value;
}

Status ReadKeys(Cursor& in, int64_t count, GgufMetadata* metadata) {
  for (int64_t i = 0; i < count; ++i) {
    KEEL_ASSIGN_OR_RETURN(std::string key,
                          in.String(fmt::format("the name of key {}", i), kMostKeyLength));
    const std::string shown = Printable(key);
    KEEL_ASSIGN_OR_RETURN(GgufValue value, ReadValue(in, shown));
    if (!metadata->Add(std::move(key), std::move(value)))
      return in.Bad(fmt::format("key {}: is there twice", shown));
  }
  return Status::Ok();
}

Result<GgufTensor> ReadTensorInfo(Cursor& in, int64_t number) {
  GgufTensor tensor;
  KEEL_ASSIGN_OR_RETURN(tensor.name,
                        in.String(fmt::format("the name of tensor {}", number), kMostTensorName));
  const std::string what = fmt::format("tensor {}", Printable(tensor.name));
  KEEL_ASSIGN_OR_RETURN(const uint32_t dims, in.Get<uint32_t>(what + ": its dims"));
  if (dims < 1 || dims > kMaxDims)
    return in.Bad(fmt::format("{}: {} dims, expected 1 to {}", what, dims, kMaxDims));
  tensor.shape = Dims::Filled(static_cast<int>(dims), 0);
  for (int i = static_cast<int>(dims) - 1; i >= 0; --i) {
    KEEL_ASSIGN_OR_RETURN(tensor.shape[i], in.Count(what + ": a size", int64_t{1} << 62));
  }
  const auto elements = CheckedElements(tensor.shape);
  if (!elements.ok() || *elements == 0)
    return in.Bad(fmt::format("{}: impossible shape {}", what, tensor.shape.ToString()));
  KEEL_ASSIGN_OR_RETURN(const uint32_t type, in.Get<uint32_t>(what + ": its type"));
  const std::optional<GgmlType> known = GgmlTypeOf(type);
  if (!known) {
    return in.Bad(fmt::format("{}: is stored as {}, which Keel does not read; it reads {}", what,
                              GgmlTypeName(type), ReadableGgmlTypes()));
  }
  tensor.type = *known;
  const GgmlBlock block = BlockOf(tensor.type);
  const int64_t row = tensor.shape[tensor.shape.size() - 1];
  if (row % block.values != 0) {
    return in.Bad(fmt::format("{}: rows of {} values, and {} stores blocks of {}", what, row,
                              GgmlTypeName(tensor.type), block.values));
  }
  // More than the file could hold would overflow.
  if (*elements / block.values > (int64_t{1} << 62) / block.bytes)
    return in.Bad(fmt::format("{}: impossible shape {}", what, tensor.shape.ToString()));
  tensor.bytes = *elements / block.values * block.bytes;
  KEEL_ASSIGN_OR_RETURN(tensor.offset, in.Count(what + ": its offset", int64_t{1} << 62));
  return tensor;
}

// Offsets count from the first aligned byte after the header.
Status PlaceTensors(const Cursor& in, int64_t size, int64_t alignment,
                    std::vector<GgufTensor>* tensors) {
  const int64_t start = (in.position() + alignment - 1) / alignment * alignment;
  for (GgufTensor& tensor : *tensors) {
    const std::string what = fmt::format("tensor {}", Printable(tensor.name));
    if (tensor.offset % alignment != 0) {
      return in.Bad(fmt::format("{}: its offset {} is no multiple of the alignment {}", what,
                                tensor.offset, alignment));
    }
    if (start > size || tensor.offset > size - start ||
        tensor.bytes > size - start - tensor.offset) {
      return in.Bad(
          fmt::format("{}: its {} bytes at {} lie outside the file of {} bytes: it was "
                      "not copied whole",
                      what, tensor.bytes, start + tensor.offset, size));
    }
    tensor.offset += start;
  }
  std::sort(tensors->begin(), tensors->end(),
            [](const GgufTensor& a, const GgufTensor& b) { return a.offset < b.offset; });
  for (size_t i = 1; i < tensors->size(); ++i) {
    const GgufTensor& before = (*tensors)[i - 1];
    if (before.offset + before.bytes <= (*tensors)[i].offset) continue;
    return in.Bad(fmt::format("tensors {} and {} overlap", Printable(before.name),
                              Printable((*tensors)[i].name)));
  }
  return Status::Ok();
}

}  // namespace

const GgufTensor* FindTensor(const GgufFile& file, std::string_view name) {
  for (const GgufTensor& tensor : file.tensors) {
    if (tensor.name == name) return &tensor;
  }
  return nullptr;
}

Result<GgufFile> ReadGguf(const File& file, std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const int64_t size, file.Size());
  Cursor in(file, size, where);
  GgufFile gguf{GgufMetadata(std::string(where)), {}, 0};
  KEEL_ASSIGN_OR_RETURN(const uint32_t magic, in.Get<uint32_t>("the first four bytes"));
  if (magic != kMagic) return in.Bad("is no GGUF file: it does not begin with \"GGUF\"");
  KEEL_ASSIGN_OR_RETURN(gguf.version, in.Get<uint32_t>("the version"));
  if (__builtin_bswap32(gguf.version) == 2 || __builtin_bswap32(gguf.version) == 3)
    return in.Bad("is a big-endian GGUF file, which Keel does not read");
  if (gguf.version != 2 && gguf.version != 3)
    return in.Bad(fmt::format("GGUF version {}, expected 2 or 3", gguf.version));
  KEEL_ASSIGN_OR_RETURN(const int64_t tensors, in.Count("the number of tensors", kMostTensors));
  KEEL_ASSIGN_OR_RETURN(const int64_t keys, in.Count("the number of keys", kMostKeys));
  KEEL_RETURN_IF_ERROR(ReadKeys(in, keys, &gguf.metadata));
  std::set<std::string> names;
  for (int64_t i = 0; i < tensors; ++i) {
    KEEL_ASSIGN_OR_RETURN(GgufTensor tensor, ReadTensorInfo(in, i));
    if (!names.insert(tensor.name).second)
      return in.Bad(fmt::format("tensor {}: is there twice", Printable(tensor.name)));
    gguf.tensors.push_back(std::move(tensor));
  }
  const char* const key = "general.alignment";
  KEEL_ASSIGN_OR_RETURN(const int64_t alignment, gguf.metadata.Int(key, kDefaultAlignment));
  if (alignment < 1 || alignment > kMostAlignment || alignment % 8 != 0)
    return gguf.metadata.Wrong(key, fmt::format("{} is no alignment", alignment));
  KEEL_RETURN_IF_ERROR(PlaceTensors(in, size, alignment, &gguf.tensors));
  return gguf;
}

}  // namespace keel::model
