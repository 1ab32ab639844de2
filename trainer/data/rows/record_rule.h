// RecordRule: what a row that is no list of tokens becomes: a record of bytes, such as a prompt
// with its answer, or a pair of answers.
#pragma once

#include <functional>

#include "common/json.h"
#include "common/status.h"
#include "common/wire.h"
#include "trainer/data/rows/row_text.h"

namespace keel::trainer {

struct RecordRule {
  // All that a record follows from beside its row and the TextRules: records of other settings are
  // other records. With what they are ("prompts") and the version of their bytes.
  Json settings;
  // Appends the record of a row, which is not empty; false where the row is left out. kInvalidData
  // at the row. Called by several threads at once, with a context each.
  std::function<Result<bool>(const Json& row, const RowContext& context, WireWriter* record)> make;
};

}  // namespace keel::trainer
