// reward.format_pattern: what a whole response must match. Torch-free.
#pragma once

#include <string>
#include <string_view>

#include "common/status.h"
#include "common/text_pattern.h"

namespace keel::rewards {

// Immutable; Matches may be called from several threads.
class FormatPattern {
 public:
  // kConfig with the place of what is wrong.
  static Result<FormatPattern> Compile(const std::string& pattern);

  // Characters are those of text, as Python counts them; of a response that is no UTF-8, as a model
  // of bytes may write it, they are bytes. kDeadlineExceeded when a million steps did not decide.
  Result<bool> Matches(std::string_view text) const;

 private:
  FormatPattern(TextPattern of_text, TextPattern of_bytes)
      : of_text_(std::move(of_text)), of_bytes_(std::move(of_bytes)) {}

  TextPattern of_text_, of_bytes_;
};

}  // namespace keel::rewards
