#include "turns/turn_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <functional>
#include <utility>

#include "common/guarded.h"

namespace keel::turns {

namespace {

// Nine characters, which is what Mistral's templates want.
std::string IdOf(const ToolCall& call, size_t number) {
  return call.id.empty() ? fmt::format("call{:05}", number % 100'000) : call.id;
}

std::string CommonStart(const std::string& a, const std::string& b) {
  return {a.begin(), std::mismatch(a.begin(), a.end(), b.begin(), b.end()).first};
}

// Where a character begins.
bool Begins(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

Result<TurnText> TurnText::Make(TurnTextOptions options, const model::Tokenizer& tokenizer) {
  TurnText text(std::move(options), tokenizer);
  if (text.options_.shows_tools) KEEL_RETURN_IF_ERROR(text.ProbeTools());
  if (text.options_.shows_users) KEEL_RETURN_IF_ERROR(text.ProbeUsers());
  return text;
}

Status TurnText::ProbeTools() {
  ToolCall call;
  call.name = "probe";
  const std::string word = "what the tool said";
  Status status;
  // Some templates show no calls, and others refuse a tool's message without one before it.
  for (const bool shows_calls : {true, false}) {
    shows_calls_ = shows_calls;
    const auto probed = Text({call}, {word});
    if (probed.ok() && probed->find(word) != std::string::npos) return Status::Ok();
    const Status wrong = probed.ok() ? Status(StatusCode::kConfig, "it leaves the tool's text out")
                                     : probed.status();
    if (status.ok()) status = wrong;
  }
  return Status(StatusCode::kConfig,
                fmt::format("actor_rollout_ref.rollout.multi_turn: the chat template cannot show "
                            "what a tool said: {}; name one that does as data.chat_template",
                            status.message()));
}

Status TurnText::ProbeUsers() {
  const std::string word = "what the user said";
  const auto behind = BehindAnswer(word);
  const size_t at = behind.ok() ? behind->find(word) : std::string::npos;
  if (at == std::string::npos) {
    return Status(StatusCode::kConfig,
                  fmt::format("actor_rollout_ref.rollout.multi_turn: the chat template cannot show "
                              "a user who speaks again: {}; name one that does as "
                              "data.chat_template",
                              behind.ok() ? "it leaves the text out" : behind.status().message()));
  }
  const auto [end, mark] = EndOfTurn(std::string_view(*behind).substr(0, at));
  answer_end_ = behind->substr(0, end == std::string::npos ? 0 : end);
  answer_mark_ = mark;
  return Status::Ok();
}

Result<std::string> TurnText::BehindAnswer(const std::string& user) const {
  const std::string answer = "what the model said";
  KEEL_ASSIGN_OR_RETURN(const std::string all,
                        Render(Json::array({Json{{"role", "user"}, {"content", "x"}},
                                            Json{{"role", "assistant"}, {"content", answer}},
                                            Json{{"role", "user"}, {"content", user}}}),
                               true));
  const size_t at = all.find(answer);
  if (at == std::string::npos)
    return Status(StatusCode::kInvalidData, "it leaves out what the model said");
  return all.substr(at + answer.size());
}

TurnText::Behind TurnText::WithoutEnd(std::string text) const {
  const size_t begin = std::min(text.find_first_not_of(" \n"), text.size());
  for (const int32_t id : options_.stop_ids) {
    const std::string mark = tokenizer_->Decode(std::span(&id, 1), {.skip_special_tokens = false});
    if (!mark.empty() && text.compare(begin, mark.size(), mark) == 0)
      return {mark, text.substr(begin + mark.size())};
  }
  return {"", std::move(text)};
}

std::pair<size_t, std::string> TurnText::EndOfTurn(std::string_view text) const {
  std::pair<size_t, std::string> found = {std::string::npos, ""};
  for (const int32_t id : options_.stop_ids) {
    const std::string mark = tokenizer_->Decode(std::span(&id, 1), {.skip_special_tokens = false});
    const size_t at = mark.empty() ? std::string::npos : text.rfind(mark);
    if (at == std::string::npos) continue;
    const size_t end = at + mark.size();
    if (found.first == std::string::npos || end > found.first) found = {end, mark};
  }
  return found;
}

Result<std::string> TurnText::Render(const Json& messages, bool open) const {
  model::ChatRequest request;
  request.messages = messages;
  request.tools = options_.tools;
  request.extra = options_.arguments;
  request.clock = options_.clock;
  request.add_generation_prompt = open;
  KEEL_ASSIGN_OR_RETURN(model::RenderedChat rendered, options_.chat.Render(request));
  return std::move(rendered.text);
}

Result<std::string> TurnText::Text(const std::vector<ToolCall>& calls,
                                   const std::vector<std::string>& results) const {
  KEEL_ASSIGN_OR_RETURN(Behind behind, Find(calls, results));
  return std::move(behind.text);
}

Result<TurnText::Behind> TurnText::Find(const std::vector<ToolCall>& calls,
                                        const std::vector<std::string>& results) const {
  if (calls[0].to_environment) {
    KEEL_ASSIGN_OR_RETURN(const std::string behind, BehindAnswer(results[0]));
    if (!behind.starts_with(answer_end_)) {
      return Status(StatusCode::kInvalidData,
                    "the end of an answer is not what it was before another question");
    }
    return Behind{answer_mark_, behind.substr(answer_end_.size())};
  }
  auto text = BehindCalls(calls, calls.size(), results);
  // Some templates show one call a turn.
  if (!text.ok() && calls.size() > 1) return BehindCalls(calls, 1, results);
  return text;
}

Result<TurnText::Behind> TurnText::BehindCalls(const std::vector<ToolCall>& calls, size_t shown,
                                               const std::vector<std::string>& results) const {
  // 1. The conversation without the tools' messages, and with them.
  Json messages = Json::array({Json{{"role", "user"}, {"content", "x"}}});
  KEEL_ASSIGN_OR_RETURN(const std::string asked, Render(messages, true));
  messages.push_back({{"role", "assistant"}, {"content", shows_calls_ ? "" : "x"}});
  for (size_t i = 0; shows_calls_ && i < shown; ++i) {
    // No arguments: no template shows them with a result, and the model's could make one fail.
    const Json function = {{"name", calls[i].name.empty() ? "unknown" : calls[i].name},
                           {"arguments", Json::object()}};
    messages.back()["tool_calls"].push_back(
        {{"type", "function"}, {"id", IdOf(calls[i], i)}, {"function", function}});
  }
  KEEL_ASSIGN_OR_RETURN(std::string before, Render(messages, false));
  const auto answered = [&](const std::function<std::string(size_t)>& said) {
    Json all = messages;
    for (size_t i = 0; i < results.size(); ++i) {
      all.push_back({{"role", "tool"},
                     {"name", calls[i].name},
                     {"tool_call_id", IdOf(calls[i], i)},
                     {"content", said(i)}});
    }
    return Render(all, true);
  };
  KEEL_ASSIGN_OR_RETURN(const std::string with, answered([&](size_t i) { return results[i]; }));
  const bool last_alike = with.starts_with(before);
  if (!last_alike) {
    // Some templates write the last turn otherwise, Qwen3's with an empty thought. What precedes
    // the tools' texts is what it is, whatever they say.
    KEEL_ASSIGN_OR_RETURN(const std::string one, answered([](size_t) { return "0"; }));
    KEEL_ASSIGN_OR_RETURN(const std::string other, answered([](size_t) { return "1"; }));
    before = CommonStart(one, other);
  }
  // 2. Behind the token that ends the turn, which is generated, the template may write more.
  const size_t turn = CommonStart(asked, before).size();
  const auto [end, mark] = EndOfTurn(std::string_view(before).substr(turn));
  const bool ends = end != std::string::npos;
  if (!last_alike && !(ends && with.starts_with(before.substr(0, turn + end)))) {
    return Status(StatusCode::kInvalidData,
                  "the conversation with a tool's message does not begin as the one without");
  }
  if (ends) return Behind{mark, with.substr(turn + end)};
  return WithoutEnd(with.substr(before.size()));  // some write it only where something follows
}

Result<std::vector<int32_t>> TurnText::Tokens(const std::vector<ToolCall>& calls,
                                              const std::vector<std::string>& results) const {
  KEEL_ASSIGN_OR_RETURN(const Behind behind, Find(calls, results));
  std::vector<int32_t> tokens;
  KEEL_RETURN_IF_ERROR(Guarded([&]() -> Status {
    const std::vector<int32_t> mark = tokenizer_->Encode(behind.mark);
    tokens = tokenizer_->Encode(behind.mark + behind.text);
    if (tokens.size() >= mark.size() && std::equal(mark.begin(), mark.end(), tokens.begin())) {
      tokens.erase(tokens.begin(), tokens.begin() + static_cast<std::ptrdiff_t>(mark.size()));
    } else {
      tokens = tokenizer_->Encode(behind.text);
    }
    return Status::Ok();
  }));
  return tokens;
}

std::optional<std::string> Truncated(std::string_view text, int64_t most, TruncateSide side) {
  const auto count = std::count_if(text.begin(), text.end(), Begins);
  if (count <= most) return std::nullopt;
  // The first `n` characters, and the last.
  const auto first = [&](int64_t n) {
    size_t at = 0;
    for (; at < text.size(); ++at)
      if (Begins(text[at]) && n-- == 0) break;
    return text.substr(0, at);
  };
  const auto last = [&](int64_t n) { return text.substr(first(count - n).size()); };
  switch (side) {
    case TruncateSide::kLeft:
      return fmt::format("{}...(truncated)", first(most));
    case TruncateSide::kRight:
      return fmt::format("(truncated)...{}", last(most));
    case TruncateSide::kMiddle:
      break;
  }
  return fmt::format("{}...(truncated)...{}", first(most / 2), last(most / 2));
}

}  // namespace keel::turns
