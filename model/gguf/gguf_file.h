// GgufFile: the header of a GGUF file, version 2 or 3: key-values, and where the tensors lie.
//
// Nothing that the file says is trusted: counts, lengths and offsets are compared with the bytes
// that there are before anything is allocated or read by them. Immutable once opened; the caller
// keeps the File and reads the tensors' bytes from it. Format: ggml's docs/gguf.md.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/files/file_system.h"
#include "common/status.h"
#include "common/tensors/box.h"
#include "model/gguf/ggml_type.h"

namespace keel::model {

// As numbered in files.
enum class GgufType : uint32_t {
  kUint8 = 0,
  kInt8 = 1,
  kUint16 = 2,
  kInt16 = 3,
  kUint32 = 4,
  kInt32 = 5,
  kFloat32 = 6,
  kBool = 7,
  kString = 8,
  kArray = 9,
  kUint64 = 10,
  kInt64 = 11,
  kFloat64 = 12,
};
std::string_view GgufTypeName(GgufType type);  // "uint32"

// A value, or an array of values of one type; the numbers as the file has them.
struct GgufValue {
  GgufType type = GgufType::kUint8;  // of the value or of the array's elements; never kArray
  bool is_array = false;
  int64_t count = 1;
  std::string numbers;               // count x the type's size, little endian
  std::vector<std::string> strings;  // count, of kString

  // Element `i` of a value whose type is a number; a bool is 0 or 1.
  double Number(int64_t i) const;
  // The same of an integer or a bool; nothing above int64.
  std::optional<int64_t> Integer(int64_t i) const;
  bool is_integer() const;  // of kBool, too, it is not
  bool is_float() const { return type == GgufType::kFloat32 || type == GgufType::kFloat64; }
};

// A float32 of the file as the number that was written: 1e-05, not 9.99999974e-06.
double GgufShortest(double value);

struct GgufTensor {
  std::string name;
  GgmlType type = GgmlType::kF32;
  Dims shape;          // slowest dim first, as Hugging Face writes it; GGUF has the reverse
  int64_t offset = 0;  // in the file
  int64_t bytes = 0;
};

// Key-values, by name. Getters say what was expected, what was found, the file and the key.
class GgufMetadata {
 public:
  explicit GgufMetadata(std::string where) : where_(std::move(where)) {}

  const std::string& where() const { return where_; }
  // In the order of the file.
  const std::vector<std::string>& keys() const { return keys_; }
  const GgufValue* Find(std::string_view key) const;  // null when there is none
  // False when the key is there already.
  bool Add(std::string key, GgufValue value);

  // Missing: the fallback; without one, kInvalidData.
  Result<int64_t> Int(std::string_view key, std::optional<int64_t> fallback = {}) const;
  Result<double> Double(std::string_view key, std::optional<double> fallback = {}) const;
  Result<bool> Bool(std::string_view key, std::optional<bool> fallback = {}) const;
  Result<std::string> String(std::string_view key, std::optional<std::string> fallback = {}) const;
  // Arrays; missing: null.
  Result<const std::vector<std::string>*> Strings(std::string_view key) const;
  Result<const GgufValue*> Integers(std::string_view key) const;
  Result<const GgufValue*> Floats(std::string_view key) const;
  // kInvalidData: "<where>: key <key>: <problem>".
  Status Wrong(std::string_view key, std::string_view problem) const;

 private:
  Status Unlike(std::string_view key, std::string_view expected, const GgufValue& found) const;

  std::string where_;
  std::vector<std::string> keys_;
  std::unordered_map<std::string, GgufValue> values_;
};

struct GgufFile {
  GgufMetadata metadata;
  std::vector<GgufTensor> tensors;  // by offset; none overlap, all lie in the file
  uint32_t version = 0;
};
// Null when there is none of this name.
const GgufTensor* FindTensor(const GgufFile& file, std::string_view name);

// Reads the header of an open file; `where` (its path) stands first in messages. kInvalidData names
// the field, the key or the tensor.
Result<GgufFile> ReadGguf(const File& file, std::string_view where);

}  // namespace keel::model
