// Reads a small trusted safetensors file into tensors, independently of the product's reader.
#pragma once

#include <ATen/ATen.h>

#include <cstring>
#include <fstream>
#include <iterator>
#include <map>
#include <stdexcept>
#include <string>

#include <nlohmann/json.hpp>

namespace keel::testing {

inline std::map<std::string, at::Tensor> ReadSafetensors(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  if (!file) throw std::runtime_error("cannot open " + path);
  const std::string bytes((std::istreambuf_iterator<char>(file)), std::istreambuf_iterator<char>());
  uint64_t header_size = 0;
  std::memcpy(&header_size, bytes.data(), 8);
  const auto header = nlohmann::json::parse(bytes.substr(8, header_size));
  std::map<std::string, at::Tensor> tensors;
  for (const auto& [name, entry] : header.items()) {
    if (name == "__metadata__") continue;
    const std::string dtype = entry["dtype"];
    const at::ScalarType type = dtype == "F32"    ? at::kFloat
                                : dtype == "BF16" ? at::kBFloat16
                                : dtype == "I32"  ? at::kInt
                                : dtype == "I64"  ? at::kLong
                                : dtype == "F64"  ? at::kDouble
                                                  : throw std::runtime_error("dtype " + dtype);
    at::Tensor tensor = at::empty(entry["shape"].get<std::vector<int64_t>>(), type);
    const uint64_t begin = entry["data_offsets"][0];
    std::memcpy(tensor.data_ptr(), bytes.data() + 8 + header_size + begin, tensor.nbytes());
    tensors.emplace(name, tensor);
  }
  return tensors;
}

}  // namespace keel::testing
