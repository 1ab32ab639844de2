#include "rewards/format_pattern.h"

#include <utility>

#include "common/text.h"

namespace keel::rewards {

namespace {

Result<TextPattern> CompileOne(const std::string& pattern, bool bytes) {
  auto compiled = TextPattern::Compile(pattern, {.whole = true, .bytes = bytes});
  if (compiled.ok()) return compiled;
  return Status(StatusCode::kConfig, "reward.format_pattern: " + compiled.status().message());
}

}  // namespace

Result<FormatPattern> FormatPattern::Compile(const std::string& pattern) {
  KEEL_ASSIGN_OR_RETURN(TextPattern of_text, CompileOne(pattern, false));
  KEEL_ASSIGN_OR_RETURN(TextPattern of_bytes, CompileOne(pattern, true));
  return FormatPattern(std::move(of_text), std::move(of_bytes));
}

Result<bool> FormatPattern::Matches(std::string_view text) const {
  const bool is_text = FindNotUtf8(text) == std::string_view::npos;
  const auto found = (is_text ? of_text_ : of_bytes_).Find(text);
  if (!found.ok()) return found.status().WithContext("reward.format_pattern");
  return found->has_value();
}

}  // namespace keel::rewards
