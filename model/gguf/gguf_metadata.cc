// The key-values of a GGUF file, as typed values.

#include <fmt/format.h>

#include <cstring>
#include <string>
#include <utility>

#include "common/text.h"
#include "model/gguf/gguf_file.h"

namespace keel::model {

namespace {

template <typename Number>
Number At(const std::string& numbers, int64_t i) {
  Number number{};
  std::memcpy(&number, numbers.data() + i * static_cast<int64_t>(sizeof(Number)), sizeof(Number));
  return number;
}

std::string Shown(const GgufValue& value) {
  if (value.is_array)
    return fmt::format("an array of {} {}", value.count, GgufTypeName(value.type));
  if (value.type == GgufType::kString)
    return fmt::format("the string \"{}\"", Printable(value.strings[0]));
  return fmt::format("the {} {}", GgufTypeName(value.type), value.Number(0));
}

}  // namespace

std::string_view GgufTypeName(GgufType type) {
  constexpr std::string_view kNames[] = {"uint8",  "int8",    "uint16", "int16",  "uint32",
                                         "int32",  "float32", "bool",   "string", "array",
                                         "uint64", "int64",   "float64"};
  return kNames[static_cast<size_t>(type)];
}

double GgufValue::Number(int64_t i) const {
  switch (type) {
    case GgufType::kFloat32:
      return static_cast<double>(At<float>(numbers, i));
    case GgufType::kFloat64:
      return At<double>(numbers, i);
    case GgufType::kUint64:
      return static_cast<double>(At<uint64_t>(numbers, i));
    default:
      return static_cast<double>(Integer(i).value_or(0));
  }
}

std::optional<int64_t> GgufValue::Integer(int64_t i) const {
  switch (type) {
    case GgufType::kUint8:
      return At<uint8_t>(numbers, i);
    case GgufType::kBool:
      return At<uint8_t>(numbers, i) != 0 ? 1 : 0;
    case GgufType::kInt8:
      return At<int8_t>(numbers, i);
    case GgufType::kUint16:
      return At<uint16_t>(numbers, i);
    case GgufType::kInt16:
      return At<int16_t>(numbers, i);
    case GgufType::kUint32:
      return At<uint32_t>(numbers, i);
    case GgufType::kInt32:
      return At<int32_t>(numbers, i);
    case GgufType::kInt64:
      return At<int64_t>(numbers, i);
    case GgufType::kUint64:
      if (At<uint64_t>(numbers, i) > static_cast<uint64_t>(INT64_MAX)) return std::nullopt;
      return static_cast<int64_t>(At<uint64_t>(numbers, i));
    default:
      return std::nullopt;
  }
}

double GgufShortest(double value) {
  const auto single = static_cast<float>(value);
  if (static_cast<double>(single) != value) return value;
  return std::stod(fmt::format("{}", single));
}

bool GgufValue::is_integer() const {
  return type != GgufType::kString && type != GgufType::kBool && type != GgufType::kArray &&
         !is_float();
}

const GgufValue* GgufMetadata::Find(std::string_view key) const {
  const auto found = values_.find(std::string(key));
  return found == values_.end() ? nullptr : &found->second;
}

bool GgufMetadata::Add(std::string key, GgufValue value) {
  if (!values_.emplace(key, std::move(value)).second) return false;
  keys_.push_back(std::move(key));
  return true;
}

Status GgufMetadata::Wrong(std::string_view key, std::string_view problem) const {
  return Status(StatusCode::kInvalidData,
                fmt::format("{}: key {}: {}", where_, Printable(key), problem));
}

Status GgufMetadata::Unlike(std::string_view key, std::string_view expected,
                            const GgufValue& found) const {
  return Wrong(key, fmt::format("expected {}, found {}", expected, Shown(found)));
}

Result<int64_t> GgufMetadata::Int(std::string_view key, std::optional<int64_t> fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr) return Wrong(key, "is missing, expected an integer");
  if (value->is_array || !value->is_integer()) return Unlike(key, "an integer", *value);
  const std::optional<int64_t> number = value->Integer(0);
  if (!number) return Unlike(key, "an integer below 2^63", *value);
  return *number;
}

Result<double> GgufMetadata::Double(std::string_view key, std::optional<double> fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr) return Wrong(key, "is missing, expected a number");
  if (value->is_array || !(value->is_integer() || value->is_float()))
    return Unlike(key, "a number", *value);
  return value->Number(0);
}

Result<bool> GgufMetadata::Bool(std::string_view key, std::optional<bool> fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr && fallback) return *fallback;
  if (value == nullptr) return Wrong(key, "is missing, expected true or false");
  if (value->is_array || value->type != GgufType::kBool) return Unlike(key, "a bool", *value);
  return value->Integer(0) == 1;
}

Result<std::string> GgufMetadata::String(std::string_view key,
                                         std::optional<std::string> fallback) const {
  const GgufValue* value = Find(key);
  if (value == nullptr && fallback) return *std::move(fallback);
  if (value == nullptr) return Wrong(key, "is missing, expected a string");
  if (value->is_array || value->type != GgufType::kString) return Unlike(key, "a string", *value);
  return value->strings[0];
}

Result<const std::vector<std::string>*> GgufMetadata::Strings(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value == nullptr) return static_cast<const std::vector<std::string>*>(nullptr);
  if (!value->is_array || value->type != GgufType::kString)
    return Unlike(key, "an array of strings", *value);
  return &value->strings;
}

Result<const GgufValue*> GgufMetadata::Integers(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value != nullptr && !(value->is_array && value->is_integer()))
    return Unlike(key, "an array of integers", *value);
  return value;
}

Result<const GgufValue*> GgufMetadata::Floats(std::string_view key) const {
  const GgufValue* value = Find(key);
  if (value != nullptr && !(value->is_array && value->is_float()))
    return Unlike(key, "an array of floats", *value);
  return value;
}

}  // namespace keel::model
