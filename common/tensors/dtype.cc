#include "common/tensors/dtype.h"

#include <fmt/format.h>

#include <array>
#include <string>

#include "common/text.h"

namespace keel {

namespace {

struct Entry {
  DType dtype;
  std::string_view name;
  int64_t size;
};

constexpr std::array<Entry, 13> kEntries{{{DType::kBool, "BOOL", 1},
                                          {DType::kU8, "U8", 1},
                                          {DType::kI8, "I8", 1},
                                          {DType::kI16, "I16", 2},
                                          {DType::kU16, "U16", 2},
                                          {DType::kF16, "F16", 2},
                                          {DType::kBF16, "BF16", 2},
                                          {DType::kI32, "I32", 4},
                                          {DType::kU32, "U32", 4},
                                          {DType::kF32, "F32", 4},
                                          {DType::kF64, "F64", 8},
                                          {DType::kI64, "I64", 8},
                                          {DType::kU64, "U64", 8}}};

}  // namespace

int64_t DTypeSize(DType dtype) { return kEntries[static_cast<size_t>(dtype)].size; }

std::string_view DTypeName(DType dtype) { return kEntries[static_cast<size_t>(dtype)].name; }

Result<DType> ParseDType(std::string_view name) {
  for (const Entry& entry : kEntries) {
    if (entry.name == name) return entry.dtype;
  }
  // F4, F6_E2M3, F8_E4M3 and their like.
  const bool quantized =
      name.starts_with("F4") || name.starts_with("F6_") || name.starts_with("F8_");
  return Status(StatusCode::kInvalidData,
                quantized ? fmt::format("dtype \"{}\" is one of quantized weights, which are not "
                                        "read: dequantize them first, to BF16 or F32",
                                        Printable(name, 40))
                          : fmt::format("unknown dtype \"{}\"", Printable(name, 40)));
}

}  // namespace keel
