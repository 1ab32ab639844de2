#include "library/state_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "common/tensors/transfer_check.h"
#include "common/text.h"
#include "common/wire.h"

namespace keel::library {
namespace {

constexpr size_t kMostNamed = 8;

std::string TypeOf(DType dtype, const Dims& shape) {
  return fmt::format("{}{}", DTypeName(dtype), shape.ToString());
}

void Add(const std::vector<std::string>& names, std::string_view what, std::string* text) {
  if (names.empty()) return;
  const size_t shown = std::min(names.size(), kMostNamed);
  *text += fmt::format("; {} {}: {}", names.size(), what,
                       fmt::join(names.begin(), names.begin() + static_cast<int64_t>(shown), ", "));
  if (names.size() > shown) *text += fmt::format(" and {} more", names.size() - shown);
}

Status Refused(const StateDescription& saved, std::string_view differences) {
  return {StatusCode::kInvalidData,
          fmt::format(
              "{} does not hold this state, nothing was loaded{}. Give the state that was saved, "
              "or name in allow_missing what may differ",
              saved.directory, differences)};
}

}  // namespace

Status CheckHolds(const StateDescription& saved, const ShardTable& table,
                  std::span<const std::string> allow_missing, bool alone) {
  const std::vector<std::string> allowed(allow_missing.begin(), allow_missing.end());
  std::unordered_map<std::string_view, const TensorEntry*> entries;
  for (const TensorEntry& entry : saved.tensors) entries.emplace(entry.name, &entry);
  std::vector<std::string> missing, unlike, unplaced;
  for (const TensorInfo& tensor : table.tensors()) {
    if (MatchesAny(allowed, tensor.name)) continue;
    const auto found = entries.find(tensor.name);
    if (found == entries.end()) {
      missing.push_back(Printable(tensor.name));
    } else if (found->second->dtype != tensor.dtype || !(found->second->shape == tensor.shape)) {
      unlike.push_back(fmt::format("{} ({} here, {} there)", Printable(tensor.name),
                                   TypeOf(tensor.dtype, tensor.shape),
                                   TypeOf(found->second->dtype, found->second->shape)));
    }
  }
  for (const TensorEntry& entry : saved.tensors) {
    if (alone && table.Find(entry.name) < 0 && !MatchesAny(allowed, entry.name))
      unplaced.push_back(Printable(entry.name));
  }
  std::string text;
  Add(missing, "not in the checkpoint", &text);
  Add(unplaced, "in the checkpoint alone", &text);
  Add(unlike, "of another dtype or shape", &text);
  if (text.empty()) return Status::Ok();
  return Refused(saved, text);
}

Status CheckPlaced(const StateDescription& saved, std::span<const std::string> ranks) {
  std::optional<std::set<std::string>> unplaced;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::set<std::string> its;
    std::string name;
    uint64_t count = 0;
    WireReader in(ranks[rank]);
    bool whole = in.U64(&count);
    for (uint64_t i = 0; whole && i < count; ++i)
      if ((whole = in.Text(&name))) its.insert(name);
    if (!whole || !in.AtEnd())
      return {StatusCode::kInternal, fmt::format("rank {} sent a malformed word", rank)};
    if (!unplaced) unplaced = its;
    std::erase_if(*unplaced, [&](const auto& one) { return !its.contains(one); });
  }
  if (!unplaced || unplaced->empty()) return Status::Ok();
  std::string text;
  std::vector<std::string> names;
  for (const std::string& name : *unplaced) names.push_back(Printable(name));
  Add(names, "in the checkpoint, and in no rank's state", &text);
  return Refused(saved, text);
}

}  // namespace keel::library
