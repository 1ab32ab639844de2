// TurnText: what tools said, as the tokens between two turns of a response.
//
// What was generated is never rendered or tokenized again. The text is the difference of two
// renderings of a made-up conversation, with the tools' messages and without, as verl has it; what
// the template writes behind the end of the assistant's turn belongs to it. Immutable; torch-free.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <string_view>
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
  std::function<std::chrono::system_clock::time_point()> clock = {};  // as ChatRequest's
  std::vector<int32_t> stop_ids = {};                                 // that end a turn
};

class TurnText {
 public:
  // `tokenizer` must outlive this. kConfig where the template shows no tool's message, or writes
  // what precedes it otherwise when it is there.
  static Result<TurnText> Make(TurnTextOptions options, const model::Tokenizer& tokenizer);

  // Behind a turn that made `calls`; `results` are as many texts.
  Result<std::string> Text(const std::vector<ToolCall>& calls,
                           const std::vector<std::string>& results) const;
  Result<std::vector<int32_t>> Tokens(const std::vector<ToolCall>& calls,
                                      const std::vector<std::string>& results) const;

 private:
  TurnText(TurnTextOptions options, const model::Tokenizer& tokenizer)
      : options_(std::move(options)), tokenizer_(&tokenizer) {}
  Result<std::string> Render(const Json& messages, bool open) const;
  // Of the assistant's made-up turn.
  Json Called(const std::string& id) const;

  TurnTextOptions options_;
  const model::Tokenizer* tokenizer_;
  bool shows_calls_ = true;  // whether the made-up turn has a call; else a text
};

// A result cut to `most` characters, if it is longer, with a mark where the rest was; nothing: it
// is not.
std::optional<std::string> Truncated(std::string_view text, int64_t most, TruncateSide side);

}  // namespace keel::turns
