#include "turns/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/text.h"

namespace keel::turns {

namespace {

constexpr std::string_view kHermesBegin = "<tool_call>", kHermesEnd = "</tool_call>";
constexpr std::string_view kPythonTag = "<|python_tag|>";
constexpr std::string_view kMistralBegin = "[TOOL_CALLS]";

ToolCall Unreadable(std::string problem) {
  ToolCall call;
  call.problem = std::move(problem);
  return call;
}

// {"name": ..., <arguments>: {...}}; arguments may be JSON in a string, as OpenAI has them.
ToolCall ReadCall(const Json& json, const char* arguments) {
  if (!json.is_object()) return Unreadable("a call is an object");
  const auto name = json.find("name");
  if (name == json.end() || !name->is_string()) return Unreadable("the call has no name");
  ToolCall call;
  call.name = name->get<std::string>();
  if (const auto id = json.find("id"); id != json.end() && id->is_string())
    call.id = id->get<std::string>();
  const auto found = json.find(arguments);
  if (found == json.end() || found->is_null()) return call;
  call.arguments = *found;
  if (call.arguments.is_string()) {
    auto parsed = ParseJson(call.arguments.get<std::string>(), arguments);
    if (!parsed.ok()) {
      call.problem = parsed.status().message();
      return call;
    }
    call.arguments = std::move(*parsed);
  }
  if (!call.arguments.is_object()) call.problem = fmt::format("{} is no object", arguments);
  return call;
}

ToolCall ReadCallText(std::string_view text, const char* arguments) {
  const auto json = ParseJson(Trim(text), "the call");
  return json.ok() ? ReadCall(*json, arguments) : Unreadable(json.status().message());
}

std::vector<ToolCall> HermesCalls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (size_t at = 0; (at = text.find(kHermesBegin, at)) != std::string_view::npos;) {
    at += kHermesBegin.size();
    const size_t end = text.find(kHermesEnd, at);
    if (end == std::string_view::npos) {
      calls.push_back(Unreadable("the call has no </tool_call>"));
      break;
    }
    calls.push_back(ReadCallText(text.substr(at, end - at), "arguments"));
    at = end + kHermesEnd.size();
  }
  return calls;
}

// Where the JSON object that `text` begins with ends, by its braces; npos when it does not.
size_t EndOfObject(std::string_view text) {
  int depth = 0;
  bool quoted = false;
  for (size_t i = 0; i < text.size(); ++i) {
    const char c = text[i];
    if (quoted) {
      if (c == '\\') ++i;
      if (c == '"') quoted = false;
    } else if (c == '"') {
      quoted = true;
    } else if (c == '{') {
      ++depth;
    } else if (c == '}' && --depth == 0) {
      return i + 1;
    }
  }
  return std::string_view::npos;
}

bool BeginsACall(std::string_view text) {
  if (!text.starts_with('{')) return false;
  return Trim(text.substr(1)).starts_with("\"name\"");
}

std::vector<ToolCall> LlamaCalls(std::string_view text) {
  text = Trim(text);
  const bool tagged = text.starts_with(kPythonTag);
  if (tagged) text = Trim(text.substr(kPythonTag.size()));
  std::vector<ToolCall> calls;
  if (!tagged && !BeginsACall(text)) return calls;
  while (!text.empty()) {
    const size_t end = text.starts_with('{') ? EndOfObject(text) : std::string_view::npos;
    calls.push_back(ReadCallText(text.substr(0, end), "parameters"));
    if (end == std::string_view::npos) break;
    text = Trim(text.substr(end));
    if (!text.starts_with(';')) break;
    text = Trim(text.substr(1));
  }
  return calls;
}

std::vector<ToolCall> MistralCalls(std::string_view text) {
  const size_t at = text.find(kMistralBegin);
  if (at == std::string_view::npos) return {};
  const auto json = ParseJson(Trim(text.substr(at + kMistralBegin.size())), "the calls");
  if (!json.ok()) return {Unreadable(json.status().message())};
  if (!json->is_array()) return {Unreadable("[TOOL_CALLS] is followed by a list")};
  std::vector<ToolCall> calls;
  for (const Json& one : *json) calls.push_back(ReadCall(one, "arguments"));
  return calls;
}

}  // namespace

std::optional<ToolFormat> FormatOf(std::string_view chat_template) {
  const auto has = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  if (has("<function=") || has("<arg_key>")) return std::nullopt;  // XML within <tool_call>
  if (has(kHermesBegin)) return ToolFormat::kHermes;
  if (has(kMistralBegin)) return ToolFormat::kMistral;
  if (has(kPythonTag) || (has("ipython") && has("\"parameters\""))) return ToolFormat::kLlama3Json;
  return std::nullopt;
}

std::vector<ToolCall> ParseToolCalls(ToolFormat format, std::string_view text) {
  switch (format) {
    case ToolFormat::kHermes:
      return HermesCalls(text);
    case ToolFormat::kLlama3Json:
      return LlamaCalls(text);
    case ToolFormat::kMistral:
      return MistralCalls(text);
    case ToolFormat::kAuto:
      break;
  }
  return {};
}

TurnRule::TurnRule(const MultiTurnSection& options, ToolFormat format,
                   const model::Tokenizer& tokenizer, std::vector<int32_t> stop_ids)
    : options_(options), format_(format), tokenizer_(tokenizer), stop_ids_(std::move(stop_ids)) {}

std::vector<ToolCall> TurnRule::Next(std::span<const int32_t> response,
                                     const std::vector<TokenRange>& given) const {
  const auto user_turns = static_cast<int64_t>(given.size());
  if (options_.max_user_turns && user_turns >= *options_.max_user_turns) return {};
  if (options_.max_assistant_turns && user_turns + 1 >= *options_.max_assistant_turns) return {};
  std::span<const int32_t> turn =
      response.subspan(given.empty() ? 0 : static_cast<size_t>(given.back().end));
  if (!turn.empty() &&
      std::find(stop_ids_.begin(), stop_ids_.end(), turn.back()) != stop_ids_.end())
    turn = turn.first(turn.size() - 1);
  // The marks of calls are special tokens in some vocabularies.
  std::vector<ToolCall> calls =
      ParseToolCalls(format_, tokenizer_.Decode(turn, {.skip_special_tokens = false}));
  if (std::ssize(calls) > options_.max_parallel_calls)
    calls.resize(static_cast<size_t>(options_.max_parallel_calls));
  return calls;
}

}  // namespace keel::turns
