// A regular expression of the filters that Python writes as one: PCRE2's, which reads it as
// Python's `re` does. \w and \d are Unicode's; \s is not used here, as the two disagree on a few
// characters.
#pragma once

#include <memory>
#include <optional>
#include <string_view>

#include "common/byte_range.h"

namespace keel::model::jinja {

// Immutable and thread-safe.
class TextPattern {
 public:
  // `any_case`: letters match in either case. Throws Error(kInternal) for what is no expression.
  explicit TextPattern(std::string_view expression, bool any_case = false);

  // The first match in `text` from `at` on. Fails where that takes too many steps.
  std::optional<ByteRange> Find(std::string_view text, size_t at = 0) const;

 private:
  std::shared_ptr<const void> code_;
};

}  // namespace keel::model::jinja
