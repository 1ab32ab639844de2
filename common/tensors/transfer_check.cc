#include "common/tensors/transfer_check.h"

#include <fmt/format.h>
#include <fnmatch.h>

#include <algorithm>

#include "common/text.h"

namespace keel {

bool MatchesAny(const std::vector<std::string>& patterns, const std::string& name) {
  return std::any_of(patterns.begin(), patterns.end(), [&](const std::string& pattern) {
    return fnmatch(pattern.c_str(), name.c_str(), 0) == 0;
  });
}

void TransferProblems::Add(const std::string& kind, std::string_view what) {
  by_kind_[kind].insert(Printable(what, std::string_view::npos));
}

Status TransferProblems::ToStatus() const {
  if (empty()) return Status::Ok();
  std::string text;
  for (const auto& [kind, names] : by_kind_) {
    const auto shown = static_cast<ptrdiff_t>(std::min(names.size(), most_names_));
    text += fmt::format("{}{} ({}): {}{}", text.empty() ? "" : "; ", kind, names.size(),
                        fmt::join(names.begin(), std::next(names.begin(), shown), ", "),
                        names.size() > most_names_ ? ", ..." : "");
  }
  return Status(StatusCode::kInvalidData, std::move(text));
}

std::optional<Misfit> FindMisfit(const Dims& shape, DType dtype, const TensorInfo& wanted) {
  const auto differs = [&](std::string kind, const auto& has, const auto& expected) {
    return Misfit{std::move(kind),
                  fmt::format("{} (has {}, expected {})", wanted.name, has, expected)};
  };
  if (!(shape == wanted.shape))
    return differs("tensors of another shape", shape.ToString(), wanted.shape.ToString());
  if (dtype != wanted.dtype)
    return differs("tensors of another dtype", DTypeName(dtype), DTypeName(wanted.dtype));
  return std::nullopt;
}

Result<bool> CheckFilled(const Box& wanted, std::span<const Box> parts, std::string_view what,
                         bool may_lack) {
  if (parts.size() == 1 && parts.front() == wanted) return true;
  const Status exact = CheckExactCover(wanted, parts, what);
  if (exact.ok()) return true;
  const bool lacks =
      !FindOverlap(parts) && std::all_of(parts.begin(), parts.end(),
                                         [&](const Box& part) { return wanted.Contains(part); });
  if (may_lack && lacks) return false;
  return exact;
}

Status CheckWritten(const Dims& shape, std::span<const Box> parts, std::string_view what) {
  const Box whole = Box::Whole(shape);
  return whole.empty() ? Status::Ok() : CheckFilled(whole, parts, what).status();
}

}  // namespace keel
