// TurnText: what tools or an environment said, as the tokens between two turns of a response.
//
// What was generated is never rendered or tokenized again. The text is the difference of two
// renderings of a made-up conversation, with the tools' messages and without, as verl has it (where
// the turn is written otherwise without them, with two texts of them), but for the calls' names,
// which are the turn's, since some templates take them from there; what the template writes behind
// the end of the assistant's turn belongs to it. What an environment said is a user's message; of
// that text what precedes it is left out, since templates write an answer otherwise when another
// question follows it. Immutable; torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "model/chat_template/chat_template.h"
#include "model/tokenizer/tokenizer.h"
#include "turns/multi_turn_options.h"
#include "turns/tool_calls.h"

namespace keel::turns {

struct TurnTextOptions {
  model::ChatTemplate chat;
  Json arguments = Json::object();  // more that the template may read
  Json tools = {};                  // schemas
  bool shows_tools = true;          // whether tools are there to speak
  bool shows_users = false;         // whether environments are
  std::function<std::chrono::system_clock::time_point()> clock = {};  // as ChatRequest's
  std::vector<int32_t> stop_ids = {};                                 // that end a turn
};

class TurnText {
 public:
  // `tokenizer` must outlive this. kConfig where the template does not show who is to speak, or
  // writes what precedes a tool's message otherwise for another text of it.
  static Result<TurnText> Make(TurnTextOptions options, const model::Tokenizer& tokenizer);

  // Behind a turn that made `calls`, or that an environment was told of; `results` are as many
  // texts.
  Result<std::string> Text(const std::vector<ToolCall>& calls,
                           const std::vector<std::string>& results) const;
  // Its tokens as they are behind the token that ends the turn: some tokenizers write the beginning
  // of a text otherwise.
  Result<std::vector<int32_t>> Tokens(const std::vector<ToolCall>& calls,
                                      const std::vector<std::string>& results) const;

 private:
  // What the template writes behind a turn, and the token's text that ends the turn before it; "":
  // there is none.
  struct Behind {
    std::string mark;
    std::string text;
  };
  TurnText(TurnTextOptions options, const model::Tokenizer& tokenizer)
      : options_(std::move(options)), tokenizer_(&tokenizer) {}
  Status ProbeTools();
  Status ProbeUsers();
  // All that the template writes behind a made-up turn of the assistant's, with a user's behind it.
  Result<std::string> BehindAnswer(const std::string& user) const;
  // Behind the token that ends a turn, if `text` begins with one, or with blanks and one.
  Behind WithoutEnd(std::string text) const;
  // Behind the last token in `text` that ends a turn, and that token's text; npos: there is none.
  std::pair<size_t, std::string> EndOfTurn(std::string_view text) const;
  Result<Behind> Find(const std::vector<ToolCall>& calls,
                      const std::vector<std::string>& results) const;
  Result<std::string> Render(const Json& messages, bool open) const;
  // Behind a made-up turn of the assistant's with so many of the calls.
  Result<Behind> BehindCalls(const std::vector<ToolCall>& calls, size_t shown,
                             const std::vector<std::string>& results) const;

  TurnTextOptions options_;
  const model::Tokenizer* tokenizer_;
  bool shows_calls_ = true;  // whether the made-up turn has a call; else a text
  std::string answer_end_;   // of BehindAnswer: the token that ends the turn, and what precedes it
  std::string answer_mark_;  // that token's text
};

// A result cut to `most` characters, if it is longer, with a mark where the rest was; nothing: it
// is not.
std::optional<std::string> Truncated(std::string_view text, int64_t most, TruncateSide side);

}  // namespace keel::turns
