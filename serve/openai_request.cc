#include "serve/openai_request.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <limits>
#include <string>

#include "common/text.h"

namespace keel::serve {

namespace {

constexpr JsonLimits kLimits{.max_depth = 64, .max_bytes = int64_t{64} << 20};

// Of no bearing on the answer of a server that keeps nothing.
constexpr std::array<std::string_view, 7> kHarmless = {"user",
                                                       "metadata",
                                                       "store",
                                                       "service_tier",
                                                       "safety_identifier",
                                                       "prompt_cache_key",
                                                       "prompt_cache_retention"};

// What would change the answer, and what of it changes nothing.
struct Neutral {
  std::string_view name;
  bool (*holds)(const Json& value);
};
bool IsZero(const Json& value) { return value.is_number() && value.get<double>() == 0; }
bool IsEmpty(const Json& value) { return value.is_structured() && value.empty(); }
bool IsFalse(const Json& value) { return value.is_boolean() && !value.get<bool>(); }
bool IsOne(const Json& value) { return value.is_number() && value.get<double>() == 1; }
bool IsText(const Json& value) {
  return value.is_object() && value.size() == 1 && value.contains("type") &&
         value["type"] == "text";
}
bool IsListOfText(const Json& value) { return value == Json::array({"text"}); }
bool Never(const Json&) { return false; }
constexpr std::array<Neutral, 13> kNeutral = {{{"frequency_penalty", IsZero},
                                               {"presence_penalty", IsZero},
                                               {"logit_bias", IsEmpty},
                                               {"response_format", IsText},
                                               {"modalities", IsListOfText},
                                               {"best_of", IsOne},
                                               {"echo", IsFalse},
                                               {"suffix", Never},
                                               {"functions", Never},
                                               {"function_call", Never},
                                               {"audio", Never},
                                               {"prediction", Never},
                                               {"top_logprobs", IsZero}}};

Refusal Bad(std::string_view param, std::string message) {
  return {.status = 400, .message = std::move(message), .param = std::string(param)};
}

std::string Shown(const Json& value) {
  return Printable(value.dump(-1, ' ', false, Json::error_handler_t::replace), 80);
}

Refusal Expected(std::string_view param, std::string_view what, const Json& found) {
  return Bad(param, fmt::format("{}: expected {}, found {}", param, what, Shown(found)));
}

Refusal Wrong(std::string_view param, std::string_view where, std::string_view what,
              const Json& found) {
  return Bad(param, fmt::format("{}: expected {}, found {}", where, what, Shown(found)));
}

class Reader {
 public:
  Reader(Endpoint endpoint, OpenAiRequest* out) : chat_(endpoint == Endpoint::kChat), out_(*out) {
    out_ = {};
    out_.endpoint = endpoint;
  }

  std::optional<Refusal> Read(const Json& body) {
    if (!body.is_object()) return Bad("", "expected the request as a JSON object");
    for (const auto& [name, value] : body.items()) {
      if (value.is_null()) continue;
      if (auto refusal = ReadOne(name, value)) return refusal;
    }
    return Complete(body);
  }

 private:
  std::optional<Refusal> ReadOne(const std::string& name, const Json& value) {
    if (std::find(kHarmless.begin(), kHarmless.end(), name) != kHarmless.end()) return {};
    rollout::SamplingParams& p = out_.sampling;
    if (name == "model") return Text(name, value, &out_.model);
    if (name == "temperature") return Number(name, value, 0, 100, &p.temperature);
    if (name == "top_p") return Number(name, value, 0, 1, &p.top_p);
    if (name == "min_p") return Number(name, value, 0, 1, &p.min_p);
    if (name == "repetition_penalty") return Number(name, value, 1e-3, 100, &p.repetition_penalty);
    if (name == "top_k") return Whole(name, value, -1, kMostInt, &p.top_k);
    if (name == "ignore_eos") return Flag(name, value, &p.ignore_eos);
    if (name == "n") return Whole(name, value, 1, kMostSamples, &n_);
    if (name == "max_tokens" || (chat_ && name == "max_completion_tokens"))
      return MaxTokens(name, value);
    if (name == "seed") return Seed(name, value);
    if (name == "stop") return Stop(name, value);
    if (name == "stop_token_ids") return Ids(name, value, &p.stop_token_ids);
    if (name == "stream") return Flag(name, value, &out_.stream);
    if (name == "stream_options") return StreamOptions(name, value);
    if (name == "logprobs") return LogProbs(name, value);
    if (chat_ && name == "top_logprobs")
      return Whole(name, value, 0, rollout::kMostLikeliest, &out_.likeliest);
    if (!chat_ && name == "echo") return Flag(name, value, &out_.echo);
    if (chat_ && name == "parallel_tool_calls") return Flag(name, value, &out_.parallel_tool_calls);
    if (chat_ && name == "messages") return Messages(name, value);
    if (chat_ && name == "tools") return Tools(name, value);
    if (chat_ && name == "tool_choice") return ToolChoice(name, value);
    if (!chat_ && name == "prompt") return ReadPrompts(name, value);
    const auto neutral = std::find_if(kNeutral.begin(), kNeutral.end(),
                                      [&](const Neutral& one) { return one.name == name; });
    if (neutral == kNeutral.end()) {
      return Bad(name, fmt::format("{}: not a parameter of this endpoint that is supported",
                                   Printable(name, 80)));
    }
    if (neutral->holds(value)) return {};
    return Bad(name, fmt::format("{}: not supported, found {}; leave it out", name, Shown(value)));
  }

  std::optional<Refusal> Complete(const Json& body) {
    out_.n = static_cast<int>(n_);
    if (!use_tools_) out_.tools = Json();
    if (out_.include_usage && !out_.stream)
      return Bad("stream_options", "stream_options: only with stream: true");
    if (chat_ && out_.likeliest > 0 && !out_.log_probs)
      return Bad("top_logprobs", "top_logprobs: only with logprobs: true");
    if (out_.max_tokens == 0 && !out_.echo)
      return Bad("max_tokens", "max_tokens: 0 only with echo: true; expected at least 1");
    if (chat_ && out_.messages.is_null()) return Bad("messages", "messages: missing");
    if (!chat_ && out_.prompts.empty()) return Bad("prompt", "prompt: missing");
    if (body.contains("top_p") && IsZero(body["top_p"]))
      return Expected("top_p", "a number above 0", body["top_p"]);
    if (out_.sampling.top_k == 0) return Expected("top_k", "-1 (all) or at least 1", 0);
    return {};
  }

  static std::optional<Refusal> Text(const std::string& name, const Json& value, std::string* out) {
    if (!value.is_string()) return Expected(name, "a string", value);
    *out = value.get<std::string>();
    return {};
  }
  static std::optional<Refusal> Flag(const std::string& name, const Json& value, bool* out) {
    if (!value.is_boolean()) return Expected(name, "true or false", value);
    *out = value.get<bool>();
    return {};
  }
  static std::optional<Refusal> Number(const std::string& name, const Json& value, double least,
                                       double most, double* out) {
    if (!value.is_number() || !std::isfinite(value.get<double>()) || value.get<double>() < least ||
        value.get<double>() > most)
      return Expected(name, fmt::format("a number of {} to {}", least, most), value);
    *out = value.get<double>();
    return {};
  }
  static bool IsWhole(const Json& value) {
    return value.is_number_integer() &&
           (!value.is_number_unsigned() || value.get<uint64_t>() <= uint64_t{kMostInt});
  }
  static std::optional<Refusal> Whole(const std::string& name, const Json& value, int64_t least,
                                      int64_t most, int64_t* out) {
    if (!IsWhole(value) || value.get<int64_t>() < least || value.get<int64_t>() > most) {
      return Expected(name,
                      most == kMostInt ? fmt::format("a whole number of at least {}", least)
                                       : fmt::format("a whole number of {} to {}", least, most),
                      value);
    }
    *out = value.get<int64_t>();
    return {};
  }
  std::optional<Refusal> MaxTokens(const std::string& name, const Json& value) {
    int64_t found = 0;
    if (auto refusal = Whole(name, value, chat_ ? 1 : 0, kMostInt, &found)) return refusal;
    if (out_.max_tokens && *out_.max_tokens != found) {
      return Bad(name, fmt::format("max_tokens and max_completion_tokens differ: {} and {}",
                                   *out_.max_tokens, found));
    }
    out_.max_tokens = found;
    return {};
  }
  std::optional<Refusal> Seed(const std::string& name, const Json& value) {
    if (!value.is_number_integer()) return Expected(name, "a whole number", value);
    out_.seed = value.is_number_unsigned() ? value.get<uint64_t>()
                                           : static_cast<uint64_t>(value.get<int64_t>());
    return {};
  }
  std::optional<Refusal> Stop(const std::string& name, const Json& value) {
    const Json list = value.is_string() ? Json::array({value}) : value;
    const std::string what = fmt::format("a string, or a list of at most {}", kMostStops);
    if (!list.is_array() || list.size() > kMostStops) return Expected(name, what, value);
    for (const Json& one : list) {
      if (!one.is_string()) return Expected(name, what, value);
      if (one.get_ref<const std::string&>().empty())
        return Bad(name, "stop: an empty string ends every text");
      out_.sampling.stop.push_back(one.get<std::string>());
    }
    return {};
  }
  static std::optional<Refusal> Ids(const std::string& name, const Json& value,
                                    std::vector<int32_t>* out) {
    if (!value.is_array()) return Expected(name, "a list of token ids", value);
    for (const Json& id : value) {
      if (!IsWhole(id) || id.get<int64_t>() < 0 ||
          id.get<int64_t>() > std::numeric_limits<int32_t>::max())
        return Expected(name, "token ids", id);
      out->push_back(id.get<int32_t>());
    }
    return {};
  }
  std::optional<Refusal> StreamOptions(const std::string& name, const Json& value) {
    if (!value.is_object()) return Expected(name, "an object", value);
    for (const auto& [key, one] : value.items()) {
      if (one.is_null()) continue;
      if (key == "include_obfuscation" && IsFalse(one)) continue;
      if (key != "include_usage")
        return Bad(name, fmt::format("stream_options.{}: not supported", Printable(key, 80)));
      if (auto refusal = Flag("stream_options.include_usage", one, &out_.include_usage))
        return refusal;
    }
    return {};
  }
  // A flag of a conversation; of a completion the number of alternatives.
  std::optional<Refusal> LogProbs(const std::string& name, const Json& value) {
    if (chat_) return Flag(name, value, &out_.log_probs);
    out_.log_probs = true;
    return Whole(name, value, 0, rollout::kMostLikeliest, &out_.likeliest);
  }
  std::optional<Refusal> Messages(const std::string& name, const Json& value) {
    if (!value.is_array() || value.empty())
      return Expected(name, "a list of at least one message", value);
    out_.messages = value;
    for (size_t i = 0; i < out_.messages.size(); ++i) {
      Json& message = out_.messages[i];
      const std::string where = fmt::format("messages[{}]", i);
      if (!message.is_object()) return Wrong(name, where, "an object", message);
      // A template would print what is no part.
      if (const auto content = message.find("content");
          content != message.end() && content->is_array() &&
          (content->empty() || !std::all_of(content->begin(), content->end(),
                                            [](const Json& part) { return part.is_object(); })))
        return Wrong(name, where + ".content", "a text, or a list of at least one part", *content);
      if (const auto calls = message.find("tool_calls");
          calls != message.end() && !calls->is_null()) {
        if (auto refusal = ReadEarlierCalls(*calls, name, where + ".tool_calls")) return refusal;
      }
    }
    return {};
  }
  // Of an earlier answer. Its arguments are text in OpenAI's API, and objects in templates.
  static std::optional<Refusal> ReadEarlierCalls(Json& calls, const std::string& name,
                                                 const std::string& where) {
    if (!calls.is_array()) return Wrong(name, where, "a list of calls", calls);
    for (Json& call : calls) {
      if (!call.is_object() || !call.contains("function") || !call["function"].is_object() ||
          !call["function"].contains("name") || !call["function"]["name"].is_string())
        return Wrong(name, where, "calls with function.name", call);
      // Templates write down what they are given: "" and a null, which clients send of a call
      // without arguments, would stand there as such.
      Json& arguments = call["function"]["arguments"];
      const Json given = arguments;
      if (given.is_null() || given == "") arguments = Json::object();
      if (arguments.is_string()) {
        auto parsed = ParseJson(given.get<std::string>(), "arguments", kLimits);
        if (parsed.ok()) arguments = *std::move(parsed);
      }
      if (!arguments.is_object())
        return Wrong(name, where, "function.arguments as a JSON object", given);
    }
    return {};
  }
  std::optional<Refusal> Tools(const std::string& name, const Json& value) {
    if (!value.is_array()) return Expected(name, "a list", value);
    for (const Json& tool : value) {
      const bool named = tool.is_object() && tool.contains("function") &&
                         tool["function"].is_object() && tool["function"].contains("name") &&
                         tool["function"]["name"].is_string();
      if (!named || tool.value("type", Json()) != "function")
        return Wrong(name, name, "tools with type \"function\" and function.name", tool);
    }
    if (!value.empty()) out_.tools = value;
    return {};
  }
  // What a model would be forced to is not supported; a template that hears of no tools calls none.
  std::optional<Refusal> ToolChoice(const std::string& name, const Json& value) {
    if (value != "auto" && value != "none") return Expected(name, "\"auto\" or \"none\"", value);
    use_tools_ = value == "auto";
    return {};
  }
  // A text, a list of texts, a list of ids, or a list of lists of ids.
  std::optional<Refusal> ReadPrompts(const std::string& name, const Json& value) {
    const std::string_view what = "a string, token ids, or a list of either";
    if (!value.is_string() && !value.is_array()) return Expected(name, what, value);
    const bool one = value.is_string() || (!value.empty() && value.front().is_number());
    const Json list = one ? Json::array({value}) : value;
    if (list.empty() || list.size() > kMostPrompts)
      return Bad(name, fmt::format("prompt: expected 1 to {} prompts, found {}", kMostPrompts,
                                   list.size()));
    for (const Json& prompt : list) {
      if (prompt.is_string()) {
        out_.prompts.emplace_back(prompt.get<std::string>());
        continue;
      }
      if (!prompt.is_array()) return Expected(name, what, prompt);
      std::vector<int32_t> ids;
      if (auto refusal = Ids(name, prompt, &ids)) return refusal;
      if (ids.empty()) return Bad(name, "prompt: a list of token ids is empty");
      out_.prompts.emplace_back(std::move(ids));
    }
    return {};
  }

  static constexpr int64_t kMostInt = std::numeric_limits<int64_t>::max();
  const bool chat_;
  OpenAiRequest& out_;
  int64_t n_ = 1;
  bool use_tools_ = true;
};

}  // namespace

std::optional<Refusal> ReadOpenAiRequest(Endpoint endpoint, std::string_view body,
                                         OpenAiRequest* request) {
  const Result<Json> json = ParseJson(body, "the request's body", kLimits);
  if (!json.ok()) return Bad("", json.status().message());
  return Reader(endpoint, request).Read(*json);
}

}  // namespace keel::serve
