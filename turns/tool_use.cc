#include "turns/tool_use.h"

#include <limits>
#include <numeric>
#include <utility>

namespace keel::turns {

double ToolUse::reward() const { return std::accumulate(rewards.begin(), rewards.end(), 0.0); }

Json ToolUse::ToJson() const {
  return {{"calls", calls},
          {"errors", errors},
          {"timeouts", timeouts},
          {"truncated", truncated},
          {"rewards", rewards}};
}

Result<ToolUse> ToolUse::FromJson(const Json& json) {
  ToolUse use;
  try {
    use.calls = json.at("calls").get<int64_t>();
    use.errors = json.at("errors").get<int64_t>();
    use.timeouts = json.at("timeouts").get<int64_t>();
    use.truncated = json.at("truncated").get<int64_t>();
    use.rewards = json.at("rewards").get<std::vector<double>>();
  } catch (const Json::exception& error) {
    return Status(StatusCode::kInvalidData, std::string("tools: ") + error.what());
  }
  return use;
}

std::string ToolMemory::ToText() const {
  return Json{{"use", use.ToJson()}, {"states", states}}.dump(-1, ' ', false,
                                                              Json::error_handler_t::replace);
}

Result<ToolMemory> ToolMemory::Parse(std::string_view text) {
  ToolMemory memory;
  if (text.empty()) return memory;
  // What replies may hold can be read: a state stands a level deeper here than in a reply, and
  // beside those of other tools.
  JsonLimits limits;
  limits.max_depth += 1;
  limits.max_bytes = std::numeric_limits<int64_t>::max();
  KEEL_ASSIGN_OR_RETURN(const Json json, ParseJson(text, "a sample's tool memory", limits));
  const bool whole = json.is_object() && json.contains("use") && json.contains("states") &&
                     json["states"].is_object();
  if (!whole) return Status(StatusCode::kInvalidData, "a sample's tool memory is none");
  KEEL_ASSIGN_OR_RETURN(memory.use, ToolUse::FromJson(json["use"]));
  for (const auto& [tool, state] : json["states"].items()) memory.states[tool] = state;
  return memory;
}

}  // namespace keel::turns
