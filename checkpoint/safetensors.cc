#include "checkpoint/safetensors.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <unordered_set>
#include <utility>

#include "common/json.h"

namespace keel::checkpoint {
namespace {

constexpr std::string_view kMetadataKey = "__metadata__";
constexpr int64_t kPrefix = 8;

Status Broken(std::string_view where, std::string_view tensor, std::string_view what) {
  if (tensor.empty()) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: not a valid safetensors file: {}", where, what));
  }
  return Status(StatusCode::kInvalidData, fmt::format("{}: tensor '{}': {}", where, tensor, what));
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
                                      std::string_view where) {
  SafetensorsTensor tensor;
  tensor.name = name;
  if (!entry.is_object() || entry.size() != 3 || !entry.contains("dtype") ||
      !entry.contains("shape") || !entry.contains("data_offsets")) {
    return Broken(where, name, "expected exactly the keys dtype, shape, data_offsets");
  }
  const Json& dtype = entry.at("dtype");
  if (!dtype.is_string()) return Broken(where, name, "dtype is not a string");
  const Result<DType> parsed = ParseDType(dtype.get_ref<const std::string&>());
  if (!parsed.ok()) return Broken(where, name, parsed.status().message());
  tensor.dtype = *parsed;

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
                  fmt::format("data_offsets {} do not lie in the {} bytes of data", offsets.dump(),
                              data_bytes));
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
                                                 std::string_view where) {
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
                          ParseTensor(name, entry, header.data_start, data_bytes, where));
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

Result<SafetensorsHeader> ReadSafetensorsHeader(const File& file, std::string_view where) {
  KEEL_ASSIGN_OR_RETURN(const int64_t file_size, file.Size());
  uint64_t length = 0;
  KEEL_ASSIGN_OR_RETURN(const int64_t got,
                        file.ReadAt(0, std::as_writable_bytes(std::span(&length, 1))));
  if (got != kPrefix || file_size < kPrefix) {
    return Broken(where, "", fmt::format("{} bytes are too few for a header length", file_size));
  }
  if (length > static_cast<uint64_t>(kMaxSafetensorsHeader) ||
      length > static_cast<uint64_t>(file_size - kPrefix)) {
    return Broken(
        where, "",
        fmt::format("the header length is {}, at most {} is possible in a file of {} bytes", length,
                    std::min(kMaxSafetensorsHeader, file_size - kPrefix), file_size));
  }
  std::string json(static_cast<size_t>(length), '\0');
  KEEL_ASSIGN_OR_RETURN(const int64_t read,
                        file.ReadAt(kPrefix, std::as_writable_bytes(std::span(json))));
  if (read != static_cast<int64_t>(length)) {
    return Broken(where, "", fmt::format("the header ends after {} of {} bytes", read, length));
  }
  return ParseSafetensorsHeader(json, file_size, where);
}

Result<SafetensorsHeader> ReadSafetensorsHeader(const FileSystem& fs, std::string_view path) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<File> file, fs.Open(path));
  return ReadSafetensorsHeader(*file, fs.Describe(path));
}

Result<std::string> BuildSafetensorsHeader(std::span<const SafetensorsPart> parts,
                                           const std::map<std::string, std::string>& metadata,
                                           int64_t alignment) {
  std::unordered_set<std::string_view> names;
  std::string json = "{";
  const auto separate = [&json] {
    if (json.size() > 1) json += ',';
  };
  if (!metadata.empty()) {
    Json object = Json::object();
    for (const auto& [key, value] : metadata) object[key] = value;
    json += fmt::format("\"{}\":{}", kMetadataKey, object.dump());
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
    std::string sizes;
    for (const int64_t size : part.shape)
      fmt::format_to(std::back_inserter(sizes), "{}{}", sizes.empty() ? "" : ",", size);
    fmt::format_to(std::back_inserter(json),
                   R"({}:{{"dtype":"{}","shape":[{}],"data_offsets":[{},{}]}})",
                   Json(std::string(part.name)).dump(), DTypeName(part.dtype), sizes, at, end);
    at = end;
  }
  json += '}';
  const int64_t unpadded = kPrefix + static_cast<int64_t>(json.size());
  const int64_t padded = (unpadded + alignment - 1) / alignment * alignment;
  json.append(static_cast<size_t>(padded - unpadded), ' ');
  if (static_cast<int64_t>(json.size()) > kMaxSafetensorsHeader) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{} tensors need a header of {} bytes, the format allows {}",
                              parts.size(), json.size(), kMaxSafetensorsHeader));
  }
  const uint64_t length = json.size();
  std::string header(kPrefix, '\0');
  std::memcpy(header.data(), &length, kPrefix);
  return header + json;
}

Result<std::string> BuildShardedSafetensorsHeader(std::span<const SafetensorsPart> parts) {
  std::string sharding = "{";
  for (const SafetensorsPart& part : parts) {
    if (sharding.size() > 1) sharding += ',';
    std::string offsets;
    for (const int64_t offset : part.saved_offset) {
      fmt::format_to(std::back_inserter(offsets), "{}{}", offsets.empty() ? "" : ",", offset);
    }
    fmt::format_to(std::back_inserter(sharding), R"({}:{{"saved_offsets":[{}]}})",
                   Json(std::string(part.name)).dump(), offsets);
  }
  sharding += '}';
  return BuildSafetensorsHeader(
      parts, {{"format", "pt"}, {"DCP_VERSION", "1.0"}, {"DCP_SHARDING_INFO", std::move(sharding)}},
      kDataAlignment);
}

}  // namespace keel::checkpoint
