// The marks between which models write calls of tools, by format: of whole answers (tool_calls.h)
// and of those that are streamed (serve/tool_call_stream.h). Torch-free.
#pragma once

#include <array>
#include <span>
#include <string_view>

#include "turns/multi_turn_options.h"

namespace keel::turns {

// What a call begins with, and what ends it; "": the end of the text.
struct ToolMarks {
  std::string_view begin, end;
};

inline constexpr std::array kHermesMarks = {ToolMarks{"<tool_call>", "</tool_call>"}};
inline constexpr ToolMarks kFunctionMarks = {"<function=", "</function>"};
// Seed-OSS has a name of its own for the outer ones, which a model may leave away.
inline constexpr std::array kQwen3CoderMarks = {
    kHermesMarks[0], ToolMarks{"<seed:tool_call>", "</seed:tool_call>"}, kFunctionMarks};
inline constexpr std::array kMistralMarks = {ToolMarks{"[TOOL_CALLS]", ""}};
// Granite leaves the end out.
inline constexpr std::array kGraniteMarks = {ToolMarks{"<|tool_call|>", "<|/tool_call|>"},
                                             ToolMarks{"<TOOLCALL>", "</TOOLCALL>"}};
inline constexpr std::array kOlmo3Marks = {ToolMarks{"<function_calls>", "</function_calls>"}};
// Around all calls of a turn, and around one of them where a model leaves the outer ones away.
inline constexpr std::array kDeepseekMarks = {
    ToolMarks{"<｜tool▁calls▁begin｜>", "<｜tool▁calls▁end｜>"},
    ToolMarks{"<｜tool▁call▁begin｜>", "<｜tool▁call▁end｜>"}};
// Within a call of DeepSeek's: between its kind and its name, or its name and its arguments.
inline constexpr std::string_view kDeepseekSeparator = "<｜tool▁sep｜>";

// Within a call of Mistral's.
inline constexpr std::string_view kMistralArguments = "[ARGS]", kMistralId = "[CALL_ID]";
// Before one of Llama's, which have no marks around them, and may lack this one.
inline constexpr std::string_view kPythonTag = "<|python_tag|>";

inline std::span<const ToolMarks> MarksOf(ToolFormat format) {
  switch (format) {
    case ToolFormat::kHermes:
      return kHermesMarks;
    case ToolFormat::kQwen3Coder:
      return kQwen3CoderMarks;
    case ToolFormat::kMistral:
      return kMistralMarks;
    case ToolFormat::kGranite:
      return kGraniteMarks;
    case ToolFormat::kOlmo3:
      return kOlmo3Marks;
    case ToolFormat::kDeepseek:
      return kDeepseekMarks;
    case ToolFormat::kLlama3Json:
    case ToolFormat::kAuto:
      break;
  }
  return {};
}

}  // namespace keel::turns
