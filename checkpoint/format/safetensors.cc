#include "checkpoint/format/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "common/files/downloaded.h"
#include "common/json.h"
#include "common/text.h"

namespace keel::checkpoint {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr int64_t kPrefix = 8;

Status Broken(std::string_view where, std::string_view tensor, std::string_view what) {
  if (tensor.empty()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: not a valid safetensors file: {}", where, what));
  }
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: tensor '{}': {}", where, Printable(tensor), what));
}

// A JSON number that is an integer in [0, 2^62].
bool ReadSize(const Json& value, int64_t* out) {
  constexpr uint64_t kMax = uint64_t{1} << 62;
  if (value.is_number_unsigned()) {
    const uint64_t number = value.get<uint64_t>();
    if (number > kMax) return false;
    *out = static_cast<int64_t>(number);
    return true;
  }
  if (value.is_number_integer() && value.get<int64_t>() >= 0) {
    *out = value.get<int64_t>();
    return *out <= static_cast<int64_t>(kMax);
  }
  return false;
}

Result<SafetensorsTensor> ParseTensor(const std::string& name, const Json& entry,
                                      int64_t data_start, int64_t data_bytes,
                                      std::string_view where, NarrowFloats narrow) {
  SafetensorsTensor tensor;
  tensor.name = name;
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    return Broken(where, name, "expected exactly the keys dtype, shape, data_offsets");
  }
  const Json& dtype = entry.at("dtype");
  if (!dtype.is_string()) return Broken(where, name, "dtype is not a string");
  const auto& dtype_name = dtype.get_ref<const std::string&>();
  if (narrow == NarrowFloats::kAsBytes && dtype_name.starts_with("F8_")) {
    tensor.dtype = DType::kU8;
    tensor.narrow = dtype_name;
  } else {
    const Result<DType> parsed = ParseDType(dtype_name);
    if (!parsed.ok()) return Broken(where, name, parsed.status().message());
    tensor.dtype = *parsed;
  }

  const Json& shape = entry.at("shape");
  if (!shape.is_array()) return Broken(where, name, "shape is not a list");
  if (shape.size() > static_cast<size_t>(kMaxDims)) {
    return Broken(where, name,
                  fmt::format("{} dims, at most {} are supported", shape.size(), kMaxDims));
  }
  tensor.shape = Dims::Filled(static_cast<int>(shape.size()), 0);
  for (int d = 0; d < tensor.shape.size(); ++d) {
    if (!ReadSize(shape[static_cast<size_t>(d)], &tensor.shape[d])) {
      return Broken(where, name,
                    fmt::format("size {} of dim {} is not a whole number >= 0",
                                shape[static_cast<size_t>(d)].dump(), d));
    }
  }
  const Result<int64_t> elements = CheckedElements(tensor.shape);
  if (!elements.ok()) return Broken(where, name, elements.status().message());

  const Json& offsets = entry.at("data_offsets");
  int64_t begin = 0;
  int64_t end = 0;
  if (!offsets.is_array() || offsets.size() != 2 || !ReadSize(offsets[0], &begin) ||
      !ReadSize(offsets[1], &end) || begin > end || end > data_bytes) {
    return Broken(where, name,
                  fmt::format("data_offsets {} do not lie in the {} bytes of data{}",
                              offsets.dump(), data_bytes,
                              end > data_bytes ? ": a file that was cut short is to be copied or "
                                                 "downloaded again"
                                               : ""));
  }
  const int64_t element_size = DTypeSize(tensor.dtype);
  if (*elements > data_bytes / element_size || *elements * element_size != end - begin) {
    return Broken(
        where, name,
        fmt::format("{}{} needs {} x {} bytes, data_offsets give {}", DTypeName(tensor.dtype),
                    tensor.shape.ToString(), *elements, element_size, end - begin));
  }
  tensor.begin = data_start + begin;
  tensor.end = data_start + end;
  return tensor;
}

}  // namespace

Result<SafetensorsHeader> ParseSafetensorsHeader(std::string_view json, int64_t file_size,
                                                 std::string_view where, NarrowFloats narrow) {
  SafetensorsHeader header;
  header.data_start = kPrefix + static_cast<int64_t>(json.size());
  if (file_size < header.data_start || static_cast<int64_t>(json.size()) > kMaxSafetensorsHeader) {
    return Broken(where, "",
                  fmt::format("a header of {} bytes in a file of {}", json.size(), file_size));
  }
  if (json.empty() || json.front() != '{')
    return Broken(where, "", "the header does not start with '{'");
  const int64_t data_bytes = file_size - header.data_start;

  JsonLimits limits;
  limits.max_bytes = kMaxSafetensorsHeader;
  limits.max_depth = 8;
  KEEL_ASSIGN_OR_RETURN(const Json root, ParseJson(json, where, limits));
  if (!root.is_object()) return Broken(where, "", "the header is not an object");

  header.tensors.reserve(root.size());
  for (const auto& [name, entry] : root.items()) {
    if (name == kMetadataKey) {
      if (!entry.is_object()) return Broken(where, name, "is not an object");
      for (const auto& [key, value] : entry.items()) {
        if (!value.is_string()) {
          return Broken(where, name, fmt::format("'{}' is not a string", key));
        }
        header.metadata.emplace(key, value.get<std::string>());
      }
      continue;
    }
    KEEL_ASSIGN_OR_RETURN(SafetensorsTensor tensor,
                          ParseTensor(name, entry, header.data_start, data_bytes, where, narrow));
    header.tensors.push_back(std::move(tensor));
  }

  std::sort(header.tensors.begin(), header.tensors.end(),
            [](const SafetensorsTensor& a, const SafetensorsTensor& b) {
              return std::pair(a.begin, a.end) < std::pair(b.begin, b.end);
            });
  int64_t at = header.data_start;
  for (const SafetensorsTensor& tensor : header.tensors) {
    if (tensor.begin != at) {
      return Broken(where, tensor.name,
                    fmt::format("its data start at byte {} of the file, expected {} ({})",
                                tensor.begin, at, tensor.begin < at ? "overlap" : "hole"));
    }
    at = tensor.end;
  }
  if (at != file_size) {
    return Broken(where, "",
                  fmt::format("the tensors end at byte {}, the file at {}", at, file_size));
  }
  return header;
}

Result<SafetensorsHeader> ReadSafetensorsHeader(const File& file, std::string_view where,
                                                NarrowFloats narrow) {
  KEEL_ASSIGN_OR_RETURN(const int64_t file_size, file.Size());
  uint64_t length = 0;
  KEEL_ASSIGN_OR_RETURN(const int64_t got,
                        file.ReadAt(0, std::as_writable_bytes(std::span(&length, 1))));
  if (got == 0) return CheckDownloaded("", where);
  if (got != kPrefix || file_size < kPrefix) {
    return Broken(where, "", fmt::format("{} bytes are too few for a header length", file_size));
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader) ||
      length > static_cast<uint64_t>(file_size - kPrefix)) {
    std::string begin(static_cast<size_t>(std::min<int64_t>(file_size, 64)), '\0');
    KEEL_RETURN_IF_ERROR(file.ReadAt(0, std::as_writable_bytes(std::span(begin))).status());
    KEEL_RETURN_IF_ERROR(CheckDownloaded(begin, where));
    const bool text = std::all_of(begin.begin(), begin.end(), [](char c) {
      return (c >= ' ' && c <= '~') || c == '\n' || c == '\r' || c == '\t';
    });
    if (text) {
      return Broken(
          where, "",
          fmt::format("it is text, and begins with \"{}\": download it again", Printable(begin)));
    }
    return Broken(
        where, "",
        fmt::format("the header length is {}, at most {} is possible in a file of {} bytes: a file "
                    "that was cut short is to be copied or downloaded again",
                    length, std::min(kMaxSafetensorsHeader, file_size - kPrefix), file_size));
  }
  std::string json(static_cast<size_t>(length), '\0');
  KEEL_ASSIGN_OR_RETURN(const int64_t read,
                        file.ReadAt(kPrefix, std::as_writable_bytes(std::span(json))));
  if (read != static_cast<int64_t>(length)) {
    return Broken(where, "", fmt::format("the header ends after {} of {} bytes", read, length));
  }
  return ParseSafetensorsHeader(json, file_size, where, narrow);
}

Result<SafetensorsHeader> ReadSafetensorsHeader(const FileSystem& fs, std::string_view path) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Open(path));
  return ReadSafetensorsHeader(*file, fs.Describe(path));
}

namespace {

// `text` as JSON, in quotes. Tensor names are nearly always plain, and there may be a million.
void AppendQuoted(std::string_view text, std::string* out) {
  const bool printable =
      std::all_of(text.begin(), text.end(), [](char c) { return c >= ' ' && c <= '~'; });
  if (!printable) {
    out->append(Json(std::string(text)).dump());
    return;
  }
  out->push_back('"');
  // Not find_first_of, which calls memchr for each character.
  const auto special = [](char c) { return c == '"' || c == '\\'; };
  for (const char* at = text.data(); at != text.data() + text.size();) {
    const char* const next = std::find_if(at, text.data() + text.size(), special);
    out->append(at, next);
    at = next;
    if (at == text.data() + text.size()) break;
    out->push_back('\\');
    out->push_back(*at++);
  }
  out->push_back('"');
}

void AppendNumber(int64_t number, std::string* out) {
  const fmt::format_int digits(number);
  out->append(digits.data(), digits.size());
}

// "[1,2]".
template <typename Numbers>
void AppendList(const Numbers& numbers, std::string* out) {
  char before = '[';
  for (const int64_t number : numbers) {
    out->push_back(before);
    AppendNumber(number, out);
    before = ',';
  }
  out->append(before == '[' ? "[]" : "]");
}

}  // namespace

Result<std::string> BuildSafetensorsHeader(std::span<const SafetensorsPart> parts,
                                           const std::map<std::string, std::string>& metadata,
                                           int64_t alignment) {
  std::unordered_set<std::string_view> names;
  names.reserve(parts.size());
  std::string json(kPrefix, '\0');
  json += '{';
  const auto separate = [&json] {
    if (json.back() != '{') json += ',';
  };
  if (!metadata.empty()) {
    AppendQuoted(kMetadataKey, &json);
    json += ":{";
    for (const auto& [key, value] : metadata) {
      separate();
      AppendQuoted(key, &json);
      json += ':';
      AppendQuoted(value, &json);
    }
    json += '}';
  }
  int64_t at = 0;
  for (const SafetensorsPart& part : parts) {
    if (part.name == kMetadataKey || !names.insert(part.name).second) {
      return Status(
          StatusCode::kInternal,
          fmt::format("a safetensors file cannot hold two entries named '{}'", part.name));
    }
    separate();
    const int64_t end = at + part.shape.elements() * DTypeSize(part.dtype);
    AppendQuoted(part.name, &json);
    json.append(R"(:{"dtype":")").append(DTypeName(part.dtype)).append(R"(","shape":)");
    AppendList(part.shape, &json);
    json += R"(,"data_offsets":)";
    AppendList(std::array<int64_t, 2>{at, end}, &json);
    json += '}';
    at = end;
  }
  json += '}';
  const auto unpadded = static_cast<int64_t>(json.size());
  const int64_t padded = (unpadded + alignment - 1) / alignment * alignment;
  json.append(static_cast<size_t>(padded - unpadded), ' ');
  const uint64_t length = json.size() - kPrefix;
  if (length > kMaxSafetensorsHeader) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{} tensors need a header of {} bytes, the format allows {}",
                              parts.size(), length, kMaxSafetensorsHeader));
  }
  std::memcpy(json.data(), &length, kPrefix);
  return json;
}

Result<std::string> BuildShardedSafetensorsHeader(std::span<const SafetensorsPart> parts) {
  std::string sharding = "{";
  for (const SafetensorsPart& part : parts) {
    if (sharding.size() > 1) sharding += ',';
    AppendQuoted(part.name, &sharding);
    sharding += R"(:{"saved_offsets":)";
    AppendList(part.saved_offset, &sharding);
    sharding += '}';
  }
  sharding += '}';
  return BuildSafetensorsHeader(
      parts, {{"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", std::move(sharding)}},
      kDataAlignment);
}

}  // namespace keel::checkpoint
