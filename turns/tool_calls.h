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

// What a turn asks: a call that the model wrote, or, of a turn without any, what it wrote itself,
// which an environment is told.
struct ToolCall {
  bool to_environment = false;  // its name is the environment's, and arguments are {"text": ...}
  std::string name;
  Json arguments = Json::object();
  std::string id;       // that the model gave it, in formats that have one
  std::string problem;  // of a call that cannot be read, for the model to see; "" is none
};

// The format that a chat template writes calls in; nothing where it has none of those above.
std::optional<ToolFormat> FormatOf(std::string_view chat_template);

// The calls of one turn, in order; none: it is an answer. Whatever the text holds, nothing is
// thrown, and a call that was begun and cannot be read is one with a problem. Not kAuto.
// `schemas`: of the tools, by which formats without types read a value: a parameter that is no
// string there and is JSON is that; everything else is text.
std::vector<ToolCall> ParseToolCalls(ToolFormat format, std::string_view text,
                                     const Json& schemas = {});

// Llama's calls have no mark of their own: a text that begins with one may go on with others, and
// with text that is none. Whether it begins with one, in the order of how sure that is.
enum class Beginning { kNone, kMayBe, kCall };
Beginning BeginningOfLlamaCall(std::string_view text);
// Where the last of the calls that it begins with ends.
size_t EndOfLlamaCalls(std::string_view text);

// What becomes of a response whose turn has ended by itself.
class TurnRule {
 public:
  // `format`: nothing where there are no tools. `tokenizer` must outlive this. `stop_ids`: tokens
  // that end a turn. `schemas` as of ParseToolCalls.
  TurnRule(const MultiTurnSection& options, std::optional<ToolFormat> format,
           const model::Tokenizer& tokenizer, std::vector<int32_t> stop_ids, Json schemas = {});

  // The calls that go on with it, at most max_parallel_calls; none: it is over. `given` are the
  // ranges of `response` that nobody chose, one between any two turns. `environment`: the sample's,
  // which is told of a turn without calls; "": it has none.
  std::vector<ToolCall> Next(std::span<const int32_t> response,
                             const std::vector<TokenRange>& given,
                             const std::string& environment = "") const;

 private:
  const MultiTurnSection options_;
  const std::optional<ToolFormat> format_;
  const model::Tokenizer& tokenizer_;
  const std::vector<int32_t> stop_ids_;
  const Json schemas_;
};

}  // namespace keel::turns
