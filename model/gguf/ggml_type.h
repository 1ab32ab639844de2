// GgmlType: how the values of a GGUF tensor are stored.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

namespace keel::model {

// As numbered in files; those that Keel reads.
enum class GgmlType : uint32_t {
  kF32 = 0,
  kF16 = 1,
  kQ4_0 = 2,
  kQ4_1 = 3,
  kQ5_0 = 6,
  kQ5_1 = 7,
  kQ8_0 = 8,
  kQ4_K = 12,
  kQ5_K = 13,
  kQ6_K = 14,
  kBF16 = 30,
};

// A row is stored in blocks of so many values, each of so many bytes; 1 value where nothing is
// quantized.
struct GgmlBlock {
  int64_t values = 1;
  int64_t bytes = 4;
};
GgmlBlock BlockOf(GgmlType type);

// Nothing for a number that Keel does not read.
std::optional<GgmlType> GgmlTypeOf(uint32_t number);
// "Q4_K", also of types that Keel does not read; "type 99" of a number that has no name.
std::string GgmlTypeName(uint32_t number);
inline std::string GgmlTypeName(GgmlType type) { return GgmlTypeName(static_cast<uint32_t>(type)); }
// "F32, F16, ...": those that Keel reads.
std::string ReadableGgmlTypes();
inline bool IsQuantized(GgmlType type) { return BlockOf(type).values > 1; }

}  // namespace keel::model
