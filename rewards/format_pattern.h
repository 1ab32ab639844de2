// A regular expression over untrusted text, with a limit on the work it may take. Torch-free.
#pragma once

#include <memory>
#include <string>
#include <string_view>

#include "common/status.h"

namespace keel::rewards {

// Immutable after Compile; Matches may be called from several threads.
class FormatPattern {
 public:
  // PCRE2 syntax, "." matching line ends too; kConfig with the place of what is wrong.
  static Result<FormatPattern> Compile(const std::string& pattern);

  // Whether the whole text matches. kDeadlineExceeded when a million steps did not decide it.
  Result<bool> Matches(std::string_view text) const;

 private:
  std::shared_ptr<const void> code_;
};

}  // namespace keel::rewards
