#include "turns/tool_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cctype>
#include <iterator>
#include <set>
#include <utility>

#include "common/text.h"
#include "turns/python_text.h"
#include "turns/tool_marks.h"

namespace keel::turns {

namespace {

constexpr ToolMarks kHermes = kHermesMarks[0];
constexpr ToolMarks kOlmo3 = kOlmo3Marks[0];
constexpr std::string_view kMistral = kMistralMarks[0].begin;

ToolCall Unreadable(std::string problem) {
  ToolCall call;
  call.problem = std::move(problem);
  return call;
}

// Up to `end`, or all of it where there is none; `text` goes on behind that.
std::string_view TakeUntil(std::string_view* text, std::string_view end) {
  const size_t at = text->find(end);
  const std::string_view taken = text->substr(0, at);
  text->remove_prefix(at == std::string_view::npos ? text->size() : at + end.size());
  return taken;
}

// Where the arguments of a call are: under its format's word for them, or another one's, since
// models mix them up. Without any, nothing may be left that could be meant.
const Json* FindArguments(const Json& call, const char* own, std::string* problem) {
  bool others = false;
  const Json* found = nullptr;
  for (const auto& [key, value] : call.items()) {
    if (key == own && !value.is_null()) return &value;
    if (key == "arguments" || key == "parameters") {
      if (!value.is_null()) found = &value;
    } else {
      others = others || (key != "name" && key != "id" && key != "type");
    }
  }
  if (found == nullptr && others) *problem = fmt::format("the call has no {}", own);
  return found;
}

// {"name": ..., <arguments>: {...}}; arguments may be JSON in a string, as OpenAI has them, and all
// of it may stand under "function", as in messages.
ToolCall ReadCall(const Json& json, const char* arguments) {
  if (!json.is_object()) return Unreadable("a call is an object");
  const auto name = json.find("name");
  const auto function = json.find("function");
  if (name == json.end() && function != json.end() && function->is_object()) {
    ToolCall call = ReadCall(*function, arguments);
    if (const auto id = json.find("id"); id != json.end() && id->is_string())
      call.id = id->get<std::string>();
    return call;
  }
  if (name == json.end() || !name->is_string()) return Unreadable("the call has no name");
  ToolCall call;
  call.name = name->get<std::string>();
  if (const auto id = json.find("id"); id != json.end() && id->is_string())
    call.id = id->get<std::string>();
  const Json* const found = FindArguments(json, arguments, &call.problem);
  if (found == nullptr) return call;
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

// One call, or a list of them.
std::vector<ToolCall> ReadCallsText(std::string_view text, const char* arguments) {
  const auto json = ParseJson(Trim(text), "the call");
  if (!json.ok()) return {Unreadable(json.status().message())};
  if (!json->is_array()) return {ReadCall(*json, arguments)};
  std::vector<ToolCall> calls;
  for (const Json& one : *json) calls.push_back(ReadCall(one, arguments));
  return calls;
}

void Append(std::vector<ToolCall> more, std::vector<ToolCall>* calls) {
  std::move(more.begin(), more.end(), std::back_inserter(*calls));
}

std::vector<ToolCall> HermesCalls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (size_t at = 0; (at = text.find(kHermes.begin, at)) != std::string_view::npos;) {
    at += kHermes.begin.size();
    const size_t end = text.find(kHermes.end, at);
    if (end == std::string_view::npos) {
      calls.push_back(Unreadable("the call has no </tool_call>"));
      break;
    }
    Append(ReadCallsText(text.substr(at, end - at), "arguments"), &calls);
    at = end + kHermes.end.size();
  }
  return calls;
}

std::vector<ToolCall> GraniteCalls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (const auto& [begin, end] : kGraniteMarks) {
    for (size_t at = 0; (at = text.find(begin, at)) != std::string_view::npos;) {
      at += begin.size();
      const std::string_view one = text.substr(at, text.find(begin, at) - at);
      Append(ReadCallsText(one.substr(0, one.find(end)), "arguments"), &calls);
    }
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

std::string_view TrimLeft(std::string_view text) {
  while (!text.empty() && IsSpace(text.front())) text.remove_prefix(1);
  return text;
}

// How far `text` goes along with these words; white space may stand before each.
Beginning Along(std::string_view text, std::span<const std::string_view> words) {
  for (const std::string_view word : words) {
    text = TrimLeft(text);
    if (!text.starts_with(word))
      return word.starts_with(text) ? Beginning::kMayBe : Beginning::kNone;
    text.remove_prefix(word.size());
  }
  return Beginning::kCall;
}

// Calls of Llama's as they stand in a text.
struct LlamaText {
  std::vector<std::string_view> calls;
  size_t end = 0;  // where the last one ends, with what parts it from nothing
};

// Behind a mark or a semicolon a call must follow; otherwise what begins as one does.
LlamaText FindLlamaCalls(std::string_view whole) {
  LlamaText found;
  std::string_view text = TrimLeft(whole);
  for (bool must = false;;) {
    if (text.starts_with(kPythonTag)) {
      must = true;
      text = TrimLeft(text.substr(kPythonTag.size()));
    }
    if (text.empty()) found.end = whole.size();
    if (text.empty() || (!must && BeginningOfLlamaCall(text) != Beginning::kCall)) return found;
    const size_t end = text.starts_with('{') ? EndOfObject(text) : std::string_view::npos;
    found.calls.push_back(text.substr(0, end));
    text.remove_prefix(found.calls.back().size());
    found.end = whole.size() - text.size();
    text = TrimLeft(text);
    must = text.starts_with(';');
    if (must || text.starts_with(',')) text = TrimLeft(text.substr(1));
  }
}

std::vector<ToolCall> LlamaCalls(std::string_view text) {
  std::vector<ToolCall> calls;
  for (const std::string_view call : FindLlamaCalls(text).calls)
    Append(ReadCallsText(call, "parameters"), &calls);
  return calls;
}

// [{"name": ..., "arguments": {...}}], or, of newer models, name[ARGS]{...} behind each mark, with
// [CALL_ID] and an id between the two or not.
std::vector<ToolCall> MistralCalls(std::string_view text) {
  const size_t at = text.find(kMistral);
  if (at == std::string_view::npos) return {};
  text = Trim(text.substr(at + kMistral.size()));
  std::vector<ToolCall> calls;
  if (text.starts_with('[') && !text.starts_with(kMistralArguments) &&
      !text.starts_with(kMistralId)) {
    return ReadCallsText(text, "arguments");
  }
  do {
    std::string_view one = TakeUntil(&text, kMistral);
    if (one.find(kMistralArguments) == std::string_view::npos) {
      calls.push_back(Unreadable("[TOOL_CALLS] is followed by a list, or by a name and [ARGS]"));
      continue;
    }
    std::string_view head = TakeUntil(&one, kMistralArguments);
    const std::string_view name = Trim(TakeUntil(&head, kMistralId));
    const auto arguments = ParseJson(Trim(one), "arguments");
    if (name.empty() || !arguments.ok()) {
      calls.push_back(
          Unreadable(name.empty() ? "the call has no name" : arguments.status().message()));
      continue;
    }
    calls.push_back(ReadCall(
        {{"name", std::string(name)}, {"id", std::string(Trim(head))}, {"arguments", *arguments}},
        "arguments"));
  } while (!text.empty());
  return calls;
}

// A value as JSON or as Python writes it; nothing where it is neither.
std::optional<Json> ReadLiteral(std::string_view text) {
  if (auto json = ParseJson(text, "a parameter"); json.ok()) return std::move(*json);
  auto value = TakePythonValue(&text);
  return Trim(text).empty() ? value : std::nullopt;
}

// The member `key` of an object; null where there is none, or no object.
Json Member(const Json& object, const std::string& key) {
  const auto found = object.is_object() ? object.find(key) : object.end();
  return found == object.end() ? Json() : *found;
}

// The types that a schema names: one, a list, or those of its alternatives (of an optional value).
void AddTypes(const Json& schema, std::set<std::string>* types) {
  const Json type = Member(schema, "type");
  for (const Json& one : type.is_array() ? type : Json::array({type}))
    if (one.is_string()) types->insert(one.get<std::string>());
  for (const char* alternatives : {"anyOf", "oneOf"})
    for (const Json& one : Member(schema, alternatives)) AddTypes(one, types);
}

// Of a parameter of the function `name`; none where they are not known.
std::set<std::string> TypesOfParameter(const Json& schemas, const std::string& name,
                                       const std::string& parameter) {
  std::set<std::string> types;
  for (const Json& schema : schemas) {
    const Json function = Member(schema, "function");
    if (Member(function, "name") != Json(name)) continue;
    AddTypes(Member(Member(Member(function, "parameters"), "properties"), parameter), &types);
    break;
  }
  return types;
}

Json ParameterValue(std::string_view text, const std::set<std::string>& types) {
  // The template writes a line's end on both sides of a value.
  if (text.starts_with('\n')) text.remove_prefix(1);
  if (text.ends_with('\n')) text.remove_suffix(1);
  const bool may_be_text = types.empty() || types.contains("string");
  if (!may_be_text || types.contains("null")) {
    const auto value = ReadLiteral(Trim(text));
    if (value && (!may_be_text || value->is_null())) return *value;
  }
  return std::string(text);
}

// <function=name><parameter=key>value</parameter>...</function>, each within <tool_call>.
std::vector<ToolCall> Qwen3CoderCalls(std::string_view text, const Json& schemas) {
  constexpr std::string_view kFunction = kFunctionMarks.begin, kFunctionEnd = kFunctionMarks.end,
                             kParameter = "<parameter=", kParameterEnd = "</parameter>";
  const bool begun = text.find(kFunction) != std::string_view::npos ||
                     text.find(kHermes.begin) != std::string_view::npos;
  std::vector<ToolCall> calls;
  while (TakeUntil(&text, kFunction), !text.empty()) {
    if (text.find(kFunctionEnd) == std::string_view::npos) {
      calls.push_back(Unreadable("the call has no </function>"));
      break;
    }
    std::string_view body = TakeUntil(&text, kFunctionEnd);
    ToolCall call;
    if (body.find('>') == std::string_view::npos) call.problem = "the function's name has no end";
    call.name = Trim(TakeUntil(&body, ">"));
    if (call.name.empty()) call.problem = "the call has no name";
    while (TakeUntil(&body, kParameter), !body.empty()) {
      const std::string parameter(Trim(TakeUntil(&body, ">")));
      if (body.find(kParameterEnd) == std::string_view::npos) {
        call.problem = "a parameter has no </parameter>";
        break;
      }
      const std::string_view value = TakeUntil(&body, kParameterEnd);
      if (call.arguments.contains(parameter)) call.problem = "a parameter is there twice";
      call.arguments[parameter] =
          ParameterValue(value, TypesOfParameter(schemas, call.name, parameter));
    }
    calls.push_back(std::move(call));
  }
  if (calls.empty() && begun) calls.push_back(Unreadable("the call has no function"));
  return calls;
}

// Calls of Python's, each on a line of its own.
std::vector<ToolCall> Olmo3Calls(std::string_view text) {
  std::vector<ToolCall> calls;
  while (TakeUntil(&text, kOlmo3.begin), !text.empty()) {
    if (text.find(kOlmo3.end) == std::string_view::npos) {
      calls.push_back(Unreadable("the calls have no </function_calls>"));
      break;
    }
    std::string_view body = TakeUntil(&text, kOlmo3.end);
    while (!Trim(body).empty()) {
      std::optional<PythonCall> read = TakePythonCall(&body);
      if (!read) {
        calls.push_back(Unreadable("a call is name(key=value, ...), as Python has it"));
        break;
      }
      ToolCall call;
      call.name = std::move(read->name);
      call.arguments = std::move(read->arguments);
      calls.push_back(std::move(call));
    }
  }
  return calls;
}

// A kind, which is "function", then the name and the arguments as a block of Markdown's; of newer
// models the name, then the arguments.
ToolCall DeepseekCall(std::string_view text) {
  if (text.find(kDeepseekSeparator) == std::string_view::npos)
    return Unreadable("the call has no mark behind its name");
  constexpr std::string_view kFence = "```", kJson = "json";
  std::string_view name = Trim(TakeUntil(&text, kDeepseekSeparator));
  const size_t fence = text.find(kFence);
  if (fence < text.find('{')) {
    name = Trim(text.substr(0, fence));
    text.remove_prefix(fence + kFence.size());
    if (text.starts_with(kJson)) text.remove_prefix(kJson.size());
    text = text.substr(0, text.rfind(kFence));
  }
  if (name.empty()) return Unreadable("the call has no name");
  const auto arguments = ParseJson(Trim(text), "arguments");
  if (!arguments.ok()) return Unreadable(arguments.status().message());
  return ReadCall({{"name", std::string(name)}, {"arguments", *arguments}}, "arguments");
}

std::vector<ToolCall> DeepseekCalls(std::string_view text) {
  const auto& [begin, end] = kDeepseekMarks[1];
  std::vector<ToolCall> calls;
  const bool begun = text.find(kDeepseekMarks[0].begin) != std::string_view::npos;
  while (text.find(begin) != std::string_view::npos) {
    TakeUntil(&text, begin);
    if (text.find(end) == std::string_view::npos) {
      calls.push_back(Unreadable("the call has no end"));
      break;
    }
    calls.push_back(DeepseekCall(TakeUntil(&text, end)));
  }
  if (calls.empty() && begun) calls.push_back(Unreadable("calls were begun, and none is there"));
  return calls;
}

}  // namespace

std::optional<ToolFormat> FormatOf(std::string_view chat_template) {
  const auto has = [&](std::string_view text) {
    return chat_template.find(text) != std::string_view::npos;
  };
  // XML of other kinds within <tool_call>, a list of calls, and Llama 4's marks.
  if (has("<arg_key>") || has("<invoke") || has("<tool_calls>") || has("<|python_start|>"))
    return std::nullopt;
  if (has("<function=") && has("<parameter=")) return ToolFormat::kQwen3Coder;
  if (has("<function=")) return std::nullopt;
  if (has(kOlmo3.begin)) return ToolFormat::kOlmo3;
  if (has(kDeepseekMarks[0].begin)) return ToolFormat::kDeepseek;
  for (const ToolMarks& marks : kGraniteMarks)
    if (has(marks.begin)) return ToolFormat::kGranite;
  if (has(kHermes.begin)) return ToolFormat::kHermes;
  if (has(kMistral)) return ToolFormat::kMistral;
  if (has(kPythonTag) || (has("ipython") && has("\"parameters\""))) return ToolFormat::kLlama3Json;
  return std::nullopt;
}

Beginning BeginningOfLlamaCall(std::string_view text) {
  constexpr std::array<std::string_view, 1> kTagged = {kPythonTag};
  constexpr std::array<std::string_view, 2> kNamed = {"{", "\"name\""};
  constexpr std::array<std::string_view, 6> kTyped = {"{", "\"type\"", ":", "\"function\"",
                                                      ",", "\"name\""};
  return std::max({Along(text, kTagged), Along(text, kNamed), Along(text, kTyped)});
}

size_t EndOfLlamaCalls(std::string_view text) { return FindLlamaCalls(text).end; }

std::vector<ToolCall> ParseToolCalls(ToolFormat format, std::string_view text,
                                     const Json& schemas) {
  switch (format) {
    case ToolFormat::kHermes:
      return HermesCalls(text);
    case ToolFormat::kLlama3Json:
      return LlamaCalls(text);
    case ToolFormat::kMistral:
      return MistralCalls(text);
    case ToolFormat::kQwen3Coder:
      return Qwen3CoderCalls(text, schemas);
    case ToolFormat::kGranite:
      return GraniteCalls(text);
    case ToolFormat::kOlmo3:
      return Olmo3Calls(text);
    case ToolFormat::kDeepseek:
      return DeepseekCalls(text);
    case ToolFormat::kAuto:
      break;
  }
  return {};
}

TurnRule::TurnRule(const MultiTurnSection& options, std::optional<ToolFormat> format,
                   const model::Tokenizer& tokenizer, std::vector<int32_t> stop_ids, Json schemas)
    : options_(options),
      format_(format),
      tokenizer_(tokenizer),
      stop_ids_(std::move(stop_ids)),
      schemas_(std::move(schemas)) {}

std::vector<ToolCall> TurnRule::Next(std::span<const int32_t> response,
                                     const std::vector<TokenRange>& given,
                                     const std::string& environment) const {
  const auto user_turns = static_cast<int64_t>(given.size());
  if (options_.max_user_turns && user_turns >= *options_.max_user_turns) return {};
  if (options_.max_assistant_turns && user_turns + 1 >= *options_.max_assistant_turns) return {};
  std::span<const int32_t> turn =
      response.subspan(given.empty() ? 0 : static_cast<size_t>(given.back().end));
  if (!turn.empty() &&
      std::find(stop_ids_.begin(), stop_ids_.end(), turn.back()) != stop_ids_.end())
    turn = turn.first(turn.size() - 1);
  // The marks of calls are special tokens in some vocabularies.
  std::vector<ToolCall> calls;
  if (format_) {
    calls =
        ParseToolCalls(*format_, tokenizer_.Decode(turn, {.skip_special_tokens = false}), schemas_);
  }
  if (calls.empty() && !environment.empty()) {
    ToolCall told;
    told.to_environment = true;
    told.name = environment;
    told.arguments["text"] = tokenizer_.Decode(turn);
    return {std::move(told)};
  }
  if (std::ssize(calls) > options_.max_parallel_calls)
    calls.resize(static_cast<size_t>(options_.max_parallel_calls));
  return calls;
}

}  // namespace keel::turns
