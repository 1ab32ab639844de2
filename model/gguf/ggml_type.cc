#include "model/gguf/ggml_type.h"

#include <fmt/format.h>

#include <string_view>

namespace keel::model {

namespace {

struct Named {
  uint32_t number;
  std::string_view name;
  int64_t values, bytes;  // of a block; 0: Keel does not read it
};

constexpr Named kTypes[] = {
    {0, "F32", 1, 4},       {1, "F16", 1, 2},     {2, "Q4_0", 32, 18},    {3, "Q4_1", 32, 20},
    {6, "Q5_0", 32, 22},    {7, "Q5_1", 32, 24},  {8, "Q8_0", 32, 34},    {9, "Q8_1", 0, 0},
    {10, "Q2_K", 0, 0},     {11, "Q3_K", 0, 0},   {12, "Q4_K", 256, 144}, {13, "Q5_K", 256, 176},
    {14, "Q6_K", 256, 210}, {15, "Q8_K", 0, 0},   {16, "IQ2_XXS", 0, 0},  {17, "IQ2_XS", 0, 0},
    {18, "IQ3_XXS", 0, 0},  {19, "IQ1_S", 0, 0},  {20, "IQ4_NL", 0, 0},   {21, "IQ3_S", 0, 0},
    {22, "IQ2_S", 0, 0},    {23, "IQ4_XS", 0, 0}, {24, "I8", 0, 0},       {25, "I16", 0, 0},
    {26, "I32", 0, 0},      {27, "I64", 0, 0},    {28, "F64", 0, 0},      {29, "IQ1_M", 0, 0},
    {30, "BF16", 1, 2},     {34, "TQ1_0", 0, 0},  {35, "TQ2_0", 0, 0},    {39, "MXFP4", 0, 0},
    {40, "NVFP4", 0, 0},
};

const Named* Find(uint32_t number) {
  for (const Named& type : kTypes) {
    if (type.number == number) return &type;
  }
  return nullptr;
}

}  // namespace

GgmlBlock BlockOf(GgmlType type) {
  const Named& found = *Find(static_cast<uint32_t>(type));
  return {found.values, found.bytes};
}

std::optional<GgmlType> GgmlTypeOf(uint32_t number) {
  const Named* found = Find(number);
  if (found == nullptr || found->values == 0) return std::nullopt;
  return static_cast<GgmlType>(number);
}

std::string GgmlTypeName(uint32_t number) {
  const Named* found = Find(number);
  return found != nullptr ? std::string(found->name) : fmt::format("type {}", number);
}

std::string ReadableGgmlTypes() {
  std::string names;
  for (const Named& type : kTypes) {
    if (type.values == 0) continue;
    if (!names.empty()) names += ", ";
    names += type.name;
  }
  return names;
}

}  // namespace keel::model
