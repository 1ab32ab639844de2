// Reads training rows from files: JSON Lines or plain text.
#pragma once

#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/tokenizer.h"

namespace keel::trainer {

struct RowKeys {
  std::string text = "text";
  std::string prompt = "prompt";
  std::string response = "response";
  std::string messages = "messages";
};

// A tokenized row. learn[i] says whether the token is to be predicted in SFT (answers);
// pre-training learns all.
struct TokenRow {
  std::vector<int32_t> tokens;
  std::vector<uint8_t> learn;
};

// kInvalidData for a row at `where`, the file and line.
Status Malformed(const std::string& where, const std::string& text);

// A list of {role, content} in ChatML; content and end mark of assistant messages are learnt. With
// `open_answer` the beginning of an assistant's message follows. `where` and `key` are for
// messages.
Result<TokenRow> RenderChat(const Json& messages, const model::Tokenizer& tokenizer,
                            const std::string& where, const std::string& key, bool open_answer);

// A prompt from a key that holds text, taken as it stands, or messages, with an answer opened.
// kInvalidData, also when it is empty.
Result<std::vector<int32_t>> PromptTokens(const Json& row, const std::string& key,
                                          const model::Tokenizer& tokenizer,
                                          const std::string& where);
// kInvalidData when a token is none of the model's.
Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab_size, const std::string& where);

// Calls `take` with each line's object of a JSON Lines file, in order; blank lines are left out.
// Errors as ReadRows.
Status ReadJsonLines(
    const std::string& path,
    const std::function<Status(const Json& object, const std::string& where)>& take);

// Calls `take` for each row of a file, in order. `.jsonl` and `.json` files hold an object a line
// with, in this order of preference: input_ids (and labels, -100 where nothing is learnt),
// messages, prompt and response, question and answer, text. Any other file is one row of text.
//
// Chat and prompts are rendered in ChatML: "<|im_start|>role\ncontent<|im_end|>\n"; the content and
// end mark of assistant messages are learnt, as is the response with the end-of-text token.
//
// Errors: kNotFound with the path; kInvalidData with file:line, what is wrong and what is accepted;
// and what `take` returns.
Status ReadRows(const std::string& path, const RowKeys& keys, const model::Tokenizer& tokenizer,
                const std::function<Status(TokenRow row, const std::string& where)>& take);

}  // namespace keel::trainer
