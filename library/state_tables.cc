#include "library/state_tables.h"

#include <fmt/format.h>

#include <algorithm>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text.h"

namespace keel::library {
namespace {

constexpr size_t kLongestName = 1000;
// The name of a safetensors file's own entry.
constexpr std::string_view kReserved = "__metadata__";

Status Refuse(const std::string& name, const std::string& why) {
  return Status(StatusCode::kInvalidData,
                fmt::format("the tensor '{}' {}", Printable(name, kLongestName), why));
}

Status CheckName(const std::string& name) {
  if (name.empty()) return Refuse(name, "has no name");
  if (name.size() > kLongestName)
    return Refuse(name, fmt::format("has a name of {} bytes, at most {} are taken", name.size(),
                                    kLongestName));
  if (name == kReserved) return Refuse(name, "has a name that the file format keeps for itself");
  if (FindNotUtf8(name) != std::string_view::npos)
    return Refuse(name, "has a name that is not UTF-8");
  return Status::Ok();
}

// Of dims with more than one element, the strides from the smallest on must step over all of the
// smaller ones.
bool LiesUponItself(const Box& box, const Dims& strides) {
  std::vector<std::pair<int64_t, int64_t>> steps;  // stride, size
  for (int d = 0; d < box.dims(); ++d) {
    if (box.size[d] > 1) steps.emplace_back(strides[d], box.size[d]);
  }
  std::sort(steps.begin(), steps.end());
  int64_t reach = 0;  // of the last element so far
  for (const auto& [stride, size] : steps) {
    if (stride <= reach) return true;
    reach += stride * (size - 1);
  }
  return false;
}

}  // namespace

Result<ShardTable> TableOf(std::span<const StateTensor> state, int rank, bool to_be_written) {
  ShardTable table;
  for (const StateTensor& tensor : state) {
    KEEL_RETURN_IF_ERROR(CheckName(tensor.name));
    for (const int64_t size : tensor.shape) {
      if (size < 0) return Refuse(tensor.name, "has the shape " + tensor.shape.ToString());
    }
    if (!tensor.box && table.Find(tensor.name) >= 0)
      return Refuse(tensor.name, "stands in the state twice");
    const Box box = tensor.box ? *tensor.box : Box::Whole(tensor.shape);
    const Dims strides = tensor.strides.empty() ? ContiguousStrides(box.size) : tensor.strides;
    if (strides.size() != box.dims())
      return Refuse(tensor.name,
                    fmt::format("has {} dims and {} strides", box.dims(), strides.size()));
    for (const int64_t stride : strides) {
      if (stride < 0) return Refuse(tensor.name, "has the strides " + strides.ToString());
    }
    if (!box.Within(tensor.shape))
      return Refuse(tensor.name, fmt::format("has the box {}, which lies outside of its shape {}",
                                             box.ToString(), tensor.shape.ToString()));
    if (box.empty()) continue;
    if (tensor.data == nullptr) return Refuse(tensor.name, "has no memory");
    if (to_be_written && LiesUponItself(box, strides))
      return Refuse(tensor.name, fmt::format("of shape {} has strides {}, by which elements lie "
                                             "upon each other: it cannot be loaded into",
                                             box.size.ToString(), strides.ToString()));
    const Status added = table.Add({tensor.name, tensor.dtype, tensor.shape}, box,
                                   {static_cast<std::byte*>(tensor.data), strides}, rank);
    if (!added.ok()) return Status(StatusCode::kInvalidData, "the tensor " + added.message());
  }
  return table;
}

}  // namespace keel::library
