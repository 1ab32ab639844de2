// Calls of tools in what a model wrote. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/token_range.h"
#include "model/tokenizer/tokenizer.h"
#include "turns/multi_turn_options.h"

namespace keel::turns {

struct ToolCall {
  std::string name;
  Json arguments = Json::object();
  std::string id;       // that the model gave it, in formats that have one
  std::string problem;  // of a call that cannot be read, for the model to see; "" is none
};

// The format that a chat template writes calls in; nothing where it has none of those above.
std::optional<ToolFormat> FormatOf(std::string_view chat_template);

// The calls of one turn, in order; none: it is an answer. Whatever the text holds, nothing is
// thrown, and a call that was begun and cannot be read is one with a problem. Not kAuto.
std::vector<ToolCall> ParseToolCalls(ToolFormat format, std::string_view text);

// What becomes of a response whose turn has ended by itself.
class TurnRule {
 public:
  // `tokenizer` must outlive this. `stop_ids`: tokens that end a turn.
  TurnRule(const MultiTurnSection& options, ToolFormat format, const model::Tokenizer& tokenizer,
           std::vector<int32_t> stop_ids);

  // The calls that go on with it, at most max_parallel_calls; none: it is over. `given` are the
  // ranges of `response` that nobody chose, one between any two turns.
  std::vector<ToolCall> Next(std::span<const int32_t> response,
                             const std::vector<TokenRange>& given) const;

 private:
  const MultiTurnSection options_;
  const ToolFormat format_;
  const model::Tokenizer& tokenizer_;
  const std::vector<int32_t> stop_ids_;
};

}  // namespace keel::turns
