// ToolRound: the calls that one turn of a sample makes, from the turn's end until all have a
// result. Pure: whoever has it asks the tools. Torch-free.
#pragma once

#include <cstddef>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "turns/multi_turn_options.h"
#include "turns/tool_calls.h"
#include "turns/tool_server.h"
#include "turns/tool_use.h"

namespace keel::turns {

class ToolRound {
 public:
  // `memory` is the sample's before the turn. `known`: the tools of the run, by name. A call that
  // cannot be read, or is of none of them and not to an environment, has its result at once.
  ToolRound(std::vector<ToolCall> calls, ToolMemory memory, const std::vector<std::string>& known);

  // What can be asked now, each once: calls of one tool one after another, since each goes on from
  // the state that the one before it left. The request's id is the call's place.
  std::vector<ToolRequest> Due();
  // Of the call at `place`.
  void Take(size_t place, ToolReply reply);
  bool done() const;

  const std::vector<ToolCall>& calls() const { return calls_; }
  // Once done: what the model is shown of each, and what the sample's tools now keep.
  struct Outcome {
    std::vector<std::string> texts;
    ToolMemory memory;
    bool over = false;  // an environment has said so, or has failed: the response ends as it is
  };
  Outcome Finish(const MultiTurnSection& options) const;

 private:
  std::vector<ToolCall> calls_;
  ToolMemory memory_;  // states as the replies come
  std::vector<bool> asked_;
  std::vector<std::optional<ToolReply>> replies_;
};

}  // namespace keel::turns
