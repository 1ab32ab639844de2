// The rows that keel generate and score read, as token ids.
#pragma once

#include <string>
#include <vector>

#include "common/json.h"
#include "tools/inference/inference_model.h"

namespace keel::tools {

// A row of an input file, or of standard input ("-"): its JSON and its token ids.
struct InputRow {
  Json json;
  std::vector<int32_t> ids;
  std::string where;  // "prompts.jsonl:3"
};
// Of each row the first of these keys that is there: `input_ids`, without padding; `messages`, and
// a `prompt` that is a list of messages, with the row's `tools`, through the model's template with
// an answer opened; `text` and a `prompt` that is text, encoded as the model's texts are. Throws
// keel::Error, naming the row.
std::vector<InputRow> ReadInputRows(const std::string& path, const InferenceModel& model);
Prompts PromptsOf(const std::vector<InputRow>& rows);

}  // namespace keel::tools
