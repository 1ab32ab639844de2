#include "library/state_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <optional>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>

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

}  // namespace

std::vector<size_t> Unplaced(const StateDescription& saved, const ShardTable& table,
                             std::span<const std::string> allow_missing) {
  const std::vector<std::string> allowed(allow_missing.begin(), allow_missing.end());
  std::vector<size_t> unplaced;
  for (size_t i = 0; i < saved.tensors.size(); ++i) {
    const std::string& name = saved.tensors[i].name;
    if (table.Find(name) < 0 && !MatchesAny(allowed, name)) unplaced.push_back(i);
  }
  return unplaced;
}

Status CheckHolds(const StateDescription& saved, const ShardTable& table,
                  std::span<const std::string> allow_missing,
                  std::span<const std::string> unplaced) {
  const std::vector<std::string> allowed(allow_missing.begin(), allow_missing.end());
  std::unordered_map<std::string_view, const TensorEntry*> entries;
  for (const TensorEntry& entry : saved.tensors) entries.emplace(entry.name, &entry);
  std::vector<std::string> missing, unlike, alone;
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
  for (const std::string& name : unplaced) alone.push_back(Printable(name));
  std::string text;
  Add(missing, "not in the checkpoint", &text);
  Add(alone, "in the checkpoint alone", &text);
  Add(unlike, "of another dtype or shape", &text);
  if (text.empty()) return Status::Ok();
  return Status(
      StatusCode::kInvalidData,
      fmt::format("{} does not hold this state, nothing was loaded{}. Give the state that "
                  "was saved, or name in allow_missing what may differ",
                  saved.directory, text));
}

std::string EncodeUnplaced(std::span<const size_t> tensors, size_t all_tensors,
                           const std::vector<std::string>& values) {
  std::string bits((all_tensors + 7) / 8, '\0');
  for (const size_t i : tensors) bits[i / 8] = static_cast<char>(bits[i / 8] | 1 << i % 8);
  WireWriter out;
  out.Text(bits).Texts(values);
  return std::move(out).Take();
}

Result<std::vector<std::string>> UnplacedByAll(const StateDescription& saved,
                                               std::span<const std::string> ranks) {
  std::string all((saved.tensors.size() + 7) / 8, '\xff');
  std::optional<std::set<std::string>> values;
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    std::string bits, name;
    uint64_t count = 0;
    std::set<std::string> its;
    WireReader in(ranks[rank]);
    bool whole = in.Text(&bits) && bits.size() == all.size() && in.U64(&count);
    for (uint64_t i = 0; whole && i < count; ++i)
      if ((whole = in.Text(&name))) its.insert(name);
    if (!whole || !in.AtEnd())
      return Status(StatusCode::kInternal, fmt::format("rank {} sent a malformed word", rank));
    for (size_t i = 0; i < all.size(); ++i) all[i] = static_cast<char>(all[i] & bits[i]);
    if (!values) values = its;
    std::erase_if(*values, [&](const std::string& name) { return !its.contains(name); });
  }
  std::vector<std::string> names;
  for (size_t i = 0; i < saved.tensors.size(); ++i)
    if ((all[i / 8] >> i % 8 & 1) != 0) names.push_back(saved.tensors[i].name);
  if (values) names.insert(names.end(), values->begin(), values->end());
  return names;
}

}  // namespace keel::library
