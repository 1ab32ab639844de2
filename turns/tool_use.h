// What a sample's tools were asked and said: numbers for metrics, and what travels with a sample
// that is not whole yet. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace keel::turns {

struct ToolUse {
  int64_t calls = 0;            // that the model made, those included that cannot be read
  int64_t errors = 0;           // of these, without a result, whoever's fault it was
  int64_t timeouts = 0;         // of the errors, past the tool's limit
  int64_t truncated = 0;        // results cut to max_tool_response_length
  std::vector<double> rewards;  // that tools gave, in order
  friend bool operator==(const ToolUse&, const ToolUse&) = default;

  bool empty() const { return *this == ToolUse(); }
  double reward() const;  // the sum

  Json ToJson() const;
  // kInvalidData names what is missing.
  static Result<ToolUse> FromJson(const Json& json);
};

// Of a sample between two turns: it lies in rollout::Partial::tool_memory, so that whoever goes on
// with the sample goes on with its tools.
struct ToolMemory {
  ToolUse use;
  std::map<std::string, Json> states;  // by tool: what it returned last, for its next call

  std::string ToText() const;
  // "" is that of a sample that has called nothing.
  static Result<ToolMemory> Parse(std::string_view text);
};

}  // namespace keel::turns
