// InputRows: the rows that keel generate and score read, as token ids.
//
// All are read, and checked, before the first is computed; they lie on the disk from then on, and
// what is held is eight bytes a row. Immutable and thread-safe.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <string>
#include <vector>

#include "common/files/spilled_bytes.h"
#include "common/json.h"
#include "tools/inference/inference_model.h"

namespace keel::tools {

struct InputOptions {
  std::string path;                                  // of a file, or of standard input ("-")
  std::string spill_folder;                          // for the rows, see SpillFolder
  bool keeps_json = false;                           // false: of a row its ids alone count
  bool with_responses = false;                       // what answers a prompt follows it
  std::function<Status(int64_t tokens)> check = {};  // of a row; null: as many as there are
};

class InputRows {
 public:
  struct Row {
    std::vector<int32_t> ids;
    std::string where;  // "prompts.jsonl:3"
    Json json;          // with keeps_json
  };

  // Of each row the first of these keys that is there: `input_ids`, without padding; `messages`,
  // and a `prompt` that is a list of messages, with the row's `tools`, through the model's template
  // with an answer opened, or the assistant's last message to be gone on with; `text` and a
  // `prompt` that is text, encoded as the model's texts are. A `response` or `completion` follows
  // its prompt with `with_responses` alone. Keys that are not read are named, of a row that is
  // kept those that say something to a model, and what a template did not show. Throws keel::Error,
  // naming the row.
  InputRows(const InputOptions& options, const InferenceModel& model);

  int64_t size() const { return std::ssize(begins_) - 1; }
  // Throws kDataLoss.
  Row Get(int64_t row) const;
  // Of each row.
  std::vector<int64_t> NumTokens() const;

 private:
  // A row's bytes.
  std::vector<std::byte> Record(int64_t row) const;

  SpilledBytes records_;
  std::vector<int64_t> begins_ = {0};  // of each record, and the end
};

}  // namespace keel::tools
