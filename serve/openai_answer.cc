#include "serve/openai_answer.h"

#include <fmt/format.h>

#include "common/text.h"

namespace keel::serve {

namespace {

// A token's text, or what OpenAI writes of one that is a part of a character: "\xe2\x80", in
// completions behind "bytes:".
std::string NameOf(const std::string& text, std::string name = "bytes:") {
  if (FindNotUtf8(text) == std::string_view::npos) return text;
  for (const char c : text) name += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
  return name;
}

// By text, with the token that was chosen among them.
Json LikeliestOf(const TokenScore& score) {
  if (!score.log_prob) return nullptr;
  Json found = Json::object();
  for (const auto& [text, log_prob] : score.likeliest)
    if (const std::string name = NameOf(text); !found.contains(name)) found[name] = log_prob;
  if (const std::string name = NameOf(score.text); !found.contains(name))
    found[name] = *score.log_prob;
  return found;
}

Json BytesOf(std::string_view text) {
  Json bytes = Json::array();
  for (const char c : text) bytes.push_back(static_cast<unsigned char>(c));
  return bytes;
}

// {"tokens": [...], "token_logprobs": [...], ...}
Json CompletionScores(const Choice& choice) {
  Json tokens = Json::array(), log_probs = Json::array(), offsets = Json::array();
  Json likeliest = Json::array();
  for (const TokenScore& score : choice.scores) {
    tokens.push_back(NameOf(score.text));
    log_probs.push_back(score.log_prob ? Json(*score.log_prob) : Json());
    likeliest.push_back(LikeliestOf(score));
    offsets.push_back(score.offset);
  }
  return {{"tokens", tokens},
          {"token_logprobs", log_probs},
          {"top_logprobs", choice.with_likeliest ? likeliest : Json()},
          {"text_offset", offsets}};
}

Json ChatScores(const Choice& choice) {
  Json content = Json::array();
  for (const TokenScore& score : choice.scores) {
    Json likeliest = Json::array();
    for (const auto& [text, log_prob] : score.likeliest)
      likeliest.push_back(
          {{"token", NameOf(text, "")}, {"logprob", log_prob}, {"bytes", BytesOf(text)}});
    content.push_back({{"token", NameOf(score.text, "")},
                       {"logprob", score.log_prob.value_or(0)},
                       {"bytes", BytesOf(score.text)},
                       {"top_logprobs", likeliest}});
  }
  return {{"content", content}, {"refusal", nullptr}};
}

Json ScoresOf(Endpoint endpoint, const Choice& choice) {
  if (!choice.scored) return nullptr;
  return endpoint == Endpoint::kChat ? ChatScores(choice) : CompletionScores(choice);
}

Json FinishOf(const Choice& choice) {
  return choice.finish.empty() ? Json(nullptr) : Json(choice.finish);
}

Json UsageOf(const Usage& usage) {
  return {{"prompt_tokens", usage.prompt_tokens},
          {"completion_tokens", usage.completion_tokens},
          {"total_tokens", usage.prompt_tokens + usage.completion_tokens}};
}

Json HeadOf(const AnswerHead& head, bool chunk) {
  const char* const object = head.endpoint == Endpoint::kCompletions ? "text_completion"
                             : chunk                                 ? "chat.completion.chunk"
                                                                     : "chat.completion";
  Json json = {{"id", head.id},
               {"object", object},
               {"created", head.created},
               {"model", head.model},
               {"choices", Json::array()}};
  if (!head.weights.empty()) json["system_fingerprint"] = head.weights;
  return json;
}

Json CallsOf(const Choice& choice, bool numbered) {
  Json calls = Json::array();
  for (const CallOfTool& call : choice.calls) {
    Json one = {{"id", call.id},
                {"type", "function"},
                {"function", {{"name", call.name}, {"arguments", call.arguments}}}};
    if (numbered) one["index"] = choice.first_call + calls.size();
    calls.push_back(std::move(one));
  }
  return calls;
}

std::string_view TypeOf(int status) {
  if (status == 401) return "authentication_error";
  if (status == 429) return "rate_limit_error";
  return status >= 500 ? "server_error" : "invalid_request_error";
}

}  // namespace

Json WholeAnswer(const AnswerHead& head, const std::vector<Choice>& choices, const Usage& usage) {
  Json answer = HeadOf(head, false);
  for (const Choice& choice : choices) {
    Json one = {{"index", choice.index}};
    if (head.endpoint == Endpoint::kChat) {
      one["message"] = {{"role", "assistant"}, {"content", choice.text}, {"refusal", nullptr}};
      if (!choice.calls.empty()) {
        one["message"]["tool_calls"] = CallsOf(choice, false);
        if (choice.text.empty()) one["message"]["content"] = nullptr;
      }
    } else {
      one["text"] = choice.text;
    }
    one["logprobs"] = ScoresOf(head.endpoint, choice);
    one["finish_reason"] = FinishOf(choice);
    answer["choices"].push_back(std::move(one));
  }
  answer["usage"] = UsageOf(usage);
  return answer;
}

Json RoleChunk(const AnswerHead& head, int index) {
  Json chunk = HeadOf(head, true);
  chunk["choices"].push_back({{"index", index},
                              {"delta", {{"role", "assistant"}, {"content", ""}}},
                              {"logprobs", nullptr},
                              {"finish_reason", nullptr}});
  return chunk;
}

Json Chunk(const AnswerHead& head, const Choice& added) {
  Json chunk = HeadOf(head, true);
  Json one = {{"index", added.index}};
  if (head.endpoint == Endpoint::kChat) {
    one["delta"] = Json::object();
    if (!added.text.empty() || (added.finish.empty() && added.calls.empty()))
      one["delta"]["content"] = added.text;
    if (!added.calls.empty()) one["delta"]["tool_calls"] = CallsOf(added, true);
  } else {
    one["text"] = added.text;
  }
  one["logprobs"] = ScoresOf(head.endpoint, added);
  one["finish_reason"] = FinishOf(added);
  chunk["choices"].push_back(std::move(one));
  return chunk;
}

Json UsageChunk(const AnswerHead& head, const Usage& usage) {
  Json chunk = HeadOf(head, true);
  chunk["usage"] = UsageOf(usage);
  return chunk;
}

std::string Event(const Json& chunk) { return "data: " + Written(chunk) + "\n\n"; }

Json ErrorAnswer(const Refusal& refusal) {
  return {{"error",
           {{"message", refusal.message},
            {"type", TypeOf(refusal.status)},
            {"param", refusal.param.empty() ? Json(nullptr) : Json(refusal.param)},
            {"code", refusal.code.empty() ? Json(nullptr) : Json(refusal.code)}}}};
}

Json ModelList(const std::string& name, int64_t created, int64_t max_model_len) {
  return {{"object", "list"},
          {"data", Json::array({{{"id", name},
                                 {"object", "model"},
                                 {"created", created},
                                 {"owned_by", "keel"},
                                 {"max_model_len", max_model_len}}})}};
}

std::string Written(const Json& json) {
  return json.dump(-1, ' ', false, Json::error_handler_t::replace);
}

}  // namespace keel::serve
