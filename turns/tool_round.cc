#include "turns/tool_round.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "common/text.h"
#include "turns/turn_text.h"

namespace keel::turns {

ToolRound::ToolRound(std::vector<ToolCall> calls, ToolMemory memory,
                     const std::vector<std::string>& known)
    : calls_(std::move(calls)),
      memory_(std::move(memory)),
      asked_(calls_.size(), false),
      replies_(calls_.size()) {
  for (size_t i = 0; i < calls_.size(); ++i) {
    const ToolCall& call = calls_[i];
    ToolReply refused;
    if (!call.problem.empty()) {
      refused.error = "this call cannot be read: " + call.problem;
    } else if (!call.to_environment &&
               std::find(known.begin(), known.end(), call.name) == known.end()) {
      refused.error = known.empty() ? fmt::format("there is no tool {}, nor any other",
                                                  Printable(call.name, 60))
                                    : fmt::format("there is no tool {}; there are: {}",
                                                  Printable(call.name, 60), fmt::join(known, ", "));
    } else {
      continue;
    }
    asked_[i] = true;
    replies_[i] = std::move(refused);
  }
}

std::vector<ToolRequest> ToolRound::Due() {
  std::vector<ToolRequest> due;
  for (size_t i = 0; i < calls_.size(); ++i) {
    if (asked_[i]) continue;
    bool free = true;
    for (size_t j = 0; j < i; ++j) free = free && (replies_[j] || calls_[j].name != calls_[i].name);
    if (!free) continue;
    asked_[i] = true;
    ToolRequest request;
    request.id = static_cast<int64_t>(i);
    request.to_environment = calls_[i].to_environment;
    request.tool = calls_[i].name;
    request.arguments = calls_[i].arguments;
    if (const auto state = memory_.states.find(request.tool); state != memory_.states.end())
      request.state = state->second;
    due.push_back(std::move(request));
  }
  return due;
}

void ToolRound::Take(size_t place, ToolReply reply) {
  if (reply.state) memory_.states[calls_[place].name] = *reply.state;
  replies_[place] = std::move(reply);
}

bool ToolRound::done() const {
  return std::all_of(replies_.begin(), replies_.end(), [](const auto& r) { return r.has_value(); });
}

ToolRound::Outcome ToolRound::Finish(const MultiTurnSection& options) const {
  Outcome outcome{{}, memory_};
  ToolUse& use = outcome.memory.use;
  for (size_t i = 0; i < replies_.size(); ++i) {
    const std::optional<ToolReply>& reply = replies_[i];
    ++use.calls;
    use.errors += !reply->ok();
    use.timeouts += reply->timed_out;
    if (reply->reward) use.rewards.push_back(*reply->reward);
    if (calls_[i].to_environment) {  // what it says is a user's turn, and whole
      outcome.over = !reply->ok() || reply->done;
      outcome.texts.push_back(reply->response);
      continue;
    }
    const std::string text = reply->ok() ? reply->response : "error: " + reply->error;
    const auto cut =
        Truncated(text, options.max_tool_response_length, options.tool_response_truncate_side);
    use.truncated += cut.has_value();
    outcome.texts.push_back(cut.value_or(text));
  }
  return outcome;
}

}  // namespace keel::turns
