// What every plan that moves tensors is held to, whoever makes it: PlanTransfer and ChooseWriters
// (transfer_plan.h), a load's ReadPlan, a reshard. Pure.
#pragma once

#include <cstddef>
#include <map>
#include <optional>
#include <set>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "common/tensors/shard_table.h"

namespace keel {

// Whether one of these patterns (fnmatch) is of `name`.
bool MatchesAny(const std::vector<std::string>& patterns, const std::string& name);

// What is wrong, by kind, so that one message can list it all.
class TransferProblems {
 public:
  static constexpr const char* kMissing = "missing tensors";

  // Of each kind a message names so many at most; it always counts all.
  explicit TransferProblems(size_t most_names = 100) : most_names_(most_names) {}
  // `what` may be of unknown origin: it is made fit for a message here.
  void Add(const std::string& kind, std::string_view what);
  bool empty() const { return by_kind_.empty(); }
  // Ok when there are none, else kInvalidData.
  Status ToStatus() const;

 private:
  size_t most_names_;
  std::map<std::string, std::set<std::string>> by_kind_;
};

// Why values of this shape and dtype cannot be those of `wanted`; nothing when they can.
struct Misfit {
  std::string kind;  // for TransferProblems
  std::string what;  // "m (has [2], expected [3])"
};
std::optional<Misfit> FindMisfit(const Dims& shape, DType dtype, const TensorInfo& wanted);

// Proves that the parts of `wanted` that a plan fills are its whole, exactly once; with `may_lack`
// at most once. Returns whether they are the whole. kInvalidData begins with `what`.
Result<bool> CheckFilled(const Box& wanted, std::span<const Box> parts, std::string_view what,
                         bool may_lack = false);
// The same of all of a tensor, as a save or a reshard writes it: of no elements nothing is written.
Status CheckWritten(const Dims& shape, std::span<const Box> parts, std::string_view what);

}  // namespace keel
