// Element types, by the names of the safetensors format.
#pragma once

#include <cstdint>
#include <string_view>

#include "common/status.h"

namespace keel {

// Part of the index file's format: do not renumber.
enum class DType : uint8_t {
  kBool = 0,
  kU8 = 1,
  kI8 = 2,
  kI16 = 3,
  kU16 = 4,
  kF16 = 5,
  kBF16 = 6,
  kI32 = 7,
  kU32 = 8,
  kF32 = 9,
  kF64 = 10,
  kI64 = 11,
  kU64 = 12,
};

int64_t DTypeSize(DType dtype);                   // bytes an element
std::string_view DTypeName(DType dtype);          // "BF16"
Result<DType> ParseDType(std::string_view name);  // kInvalidData for any other name

}  // namespace keel
