// Reads training rows from files: JSON Lines or plain text.
#pragma once

#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "trainer/data/files/byte_source.h"
#include "trainer/data/rows/chat_rows.h"
#include "trainer/data/rows/ready_ids.h"
#include "trainer/data/rows/row_text.h"

namespace keel::trainer {

struct RowKeys {
  std::string text = "text";
  std::string prompt = "prompt";
  std::string response = "response";
  std::string messages = "messages";
};

// A prompt from a key that holds text, taken as it stands, or messages, by the chat template, with
// an answer opened, or token ids, with an attention_mask beside them or none. kInvalidData, also
// when it is empty.
Result<std::vector<int32_t>> PromptTokens(const Json& object, const std::string& key,
                                          const RowContext& row,
                                          Follows follows = Follows::kMoreOfIt);

// The messages of a prompt and its response as one conversation, where a response of text is the
// assistant's if the model has a template of its own. Null of any others.
Json JoinedMessages(const Json& prompt, const Json& response, const TextRules& rules);
// A prompt and a response that are no such conversation, each text or token ids, one behind the
// other; the response alone is learnt. `ends`: one of text has the id that ends a text behind it.
Result<TokenRow> PromptAndResponse(const Json& object, const std::string& prompt_key,
                                   const std::string& response_key, bool ends,
                                   const RowContext& row);

// Calls `take` with each line's object of a JSON Lines file, in order; blank lines are left out. Or
// with each row of a table, without its members that are null: it has none of them. Members of a
// line that ParseRow has set apart (common/json_builder.h) are refused by whoever reads them.
// Errors as ReadRows.
Status ReadJsonLines(
    const std::string& path, InputKind kind,
    const std::function<Status(const Json& object, const std::string& where)>& take);
// Lines of a file of rows that is not packed: bytes [begin, end), which a line begins at and a line
// ends at, and the number of the first.
struct LineRange {
  int64_t begin = 0;
  int64_t end = 0;
  int64_t first_line = 1;
};
// The same of training data: of a whole file (no range) or some of its lines. What nothing read is
// counted in `notes`.
Status ReadJsonRows(const std::string& path, const std::optional<LineRange>& range,
                    const TextRules& rules, RowNotes* notes,
                    const std::function<Status(const Json& object, const RowContext& row)>& take);

struct RowOptions {
  RowKeys keys;
  TextRules rules;
  bool learns_all = false;  // pre-training: what labels and answers say is of no use
};

// Calls `take` for each row of a file, in order. `.jsonl`, `.ndjson` and `.json` files, packed ones
// too, hold an object a line with, in this order of preference: input_ids (with attention_mask,
// position_ids, and labels, -100 where nothing is learnt), messages, prompt and response (or
// completion), question and answer, text, instruction (and input) and output; in other trainers'
// spellings, too (row_forms.h). Any
// other file is one row of text, unless its name or content says that it is something else, which
// is refused.
//
// Messages go through the chat template (chat_rows.h). Of a model with a template of its own so do
// a question and its answer, and a response of text to a prompt of messages; any other text stands
// as it is, and a response is learnt with the id that ends a text. Prompt and response may be lists
// of ids, to which nothing is added.
//
// Errors: kNotFound with the path; kInvalidData with file:line, what is wrong and what is accepted;
// and what `take` returns.
Status ReadRows(const std::string& path, const RowOptions& options,
                std::vector<std::string>* warnings,
                const std::function<Status(TokenRow row, const std::string& where)>& take);

// The same of a whole file (no range) or some of its lines. What nothing read is counted in
// `notes`.
Status ReadSomeRows(const std::string& path, const std::optional<LineRange>& range,
                    const RowOptions& options, RowNotes* notes,
                    const std::function<Status(TokenRow row, const std::string& where)>& take);
// Whether a file of this name holds an object a line; packed ones are named "x.jsonl.gz".
bool HoldsJsonLines(const std::string& path);

}  // namespace keel::trainer
