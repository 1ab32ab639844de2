// The configuration's `actor_rollout_ref.rollout.multi_turn` section, under verl's names.
#pragma once

#include <cstdint>
#include <optional>
#include <string>

#include "common/enum_names.h"

namespace keel::turns {

// How a model writes a call down.
enum class ToolFormat {
  kAuto,        // as its chat template does
  kHermes,      // <tool_call>{"name": ..., "arguments": {...}}</tool_call>
  kLlama3Json,  // {"name": ..., "parameters": {...}}, behind <|python_tag|> or not
  kMistral,     // [TOOL_CALLS][{"name": ..., "arguments": {...}}]
  kQwen3Coder,  // <tool_call><function=...><parameter=...>...</parameter></function></tool_call>
  kGranite,     // <|tool_call|>[{"name": ..., "arguments": {...}}]
  kOlmo3,       // <function_calls>name(key=value, ...)</function_calls>
  kDeepseek,    // <｜tool▁call▁begin｜>name<｜tool▁sep｜>{...}<｜tool▁call▁end｜>
};
constexpr auto NamesOf(ToolFormat) {
  using enum ToolFormat;
  return EnumNames<ToolFormat>({{kAuto, "auto"},
                                {kHermes, "hermes"},
                                {kLlama3Json, "llama3_json"},
                                {kMistral, "mistral"},
                                {kQwen3Coder, "qwen3_coder"},
                                {kGranite, "granite"},
                                {kOlmo3, "olmo3"},
                                {kDeepseek, "deepseek"}});
}

// Which side of a result that is too long stays.
enum class TruncateSide { kLeft, kRight, kMiddle };
constexpr auto NamesOf(TruncateSide) {
  using enum TruncateSide;
  return EnumNames<TruncateSide>({{kLeft, "left"}, {kRight, "right"}, {kMiddle, "middle"}});
}

struct MultiTurnSection {
  bool enable = false;
  std::optional<int64_t> max_assistant_turns;
  std::optional<int64_t> max_user_turns;
  int64_t max_parallel_calls = 1;
  int64_t max_tool_response_length = 256;
  TruncateSide tool_response_truncate_side = TruncateSide::kMiddle;
  std::optional<std::string> tool_config_path;
  std::optional<std::string> interaction_config_path;
  ToolFormat format = ToolFormat::kAuto;
  bool add_tool_rewards = false;
};

}  // namespace keel::turns
