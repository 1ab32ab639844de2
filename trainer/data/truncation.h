// Truncation: what becomes of a row that is too long; data.truncation.
#pragma once

#include "common/enum_names.h"

namespace keel::trainer {

enum class Truncation {
  kError,
  kRight,  // cut the end
  kLeft,   // cut the beginning
  kSkip,   // leave the row out
};
constexpr auto NamesOf(Truncation) {
  using enum Truncation;
  return EnumNames<Truncation>(
      {{kError, "error"}, {kRight, "right"}, {kLeft, "left"}, {kSkip, "skip"}});
}

}  // namespace keel::trainer
