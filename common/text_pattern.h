// A regular expression over text that others wrote, with a limit on the work that it may take.
// PCRE2's, which reads most of it as Python's `re` does; \w, \d and \s are Unicode's, "." matches
// the end of a line, too. Torch-free.
#pragma once

#include <cstddef>
#include <memory>
#include <optional>
#include <string_view>

#include "common/byte_range.h"
#include "common/status.h"

namespace keel {

// Immutable and thread-safe; copies share what was compiled.
class TextPattern {
 public:
  struct Options {
    bool any_case = false;  // letters match in either case
    bool whole = false;     // matches a whole text, or nothing
    bool bytes = false;     // a character is a byte, whatever text is in it
  };

  // kInvalidData says what is wrong, and at which byte.
  static Result<TextPattern> Compile(std::string_view expression, const Options& options);
  // Of an expression that stands in the program. Throws Error(kInternal).
  static TextPattern Fixed(std::string_view expression, bool any_case = false);

  // The first match from byte `at` on, which begins a character. `text` is UTF-8, unless bytes are
  // characters. kDeadlineExceeded where a million steps do not decide it.
  Result<std::optional<ByteRange>> Find(std::string_view text, size_t at = 0) const;

 private:
  explicit TextPattern(std::shared_ptr<const void> code) : code_(std::move(code)) {}

  std::shared_ptr<const void> code_;
};

}  // namespace keel
