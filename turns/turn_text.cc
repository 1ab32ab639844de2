#include "turns/turn_text.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/guarded.h"

namespace keel::turns {

namespace {

// Nine characters, which is what Mistral's templates want.
std::string IdOf(const ToolCall& call, size_t number) {
  return call.id.empty() ? fmt::format("call{:05}", number % 100'000) : call.id;
}

// Where a character begins.
bool Begins(char byte) { return (static_cast<unsigned char>(byte) & 0xC0) != 0x80; }

}  // namespace

Result<TurnText> TurnText::Make(TurnTextOptions options, const model::Tokenizer& tokenizer) {
  TurnText text(std::move(options), tokenizer);
  ToolCall call;
  call.name = "probe";
  const std::string word = "what the tool said";
  Status status;
  // Some templates show no calls, and others refuse a tool's message without one before it.
  for (const bool shows_calls : {true, false}) {
    text.shows_calls_ = shows_calls;
    const auto probed = text.Text({call}, {word});
    if (probed.ok() && probed->find(word) != std::string::npos) return text;
    const Status wrong = probed.ok() ? Status(StatusCode::kConfig, "it leaves the tool's text out")
                                     : probed.status();
    if (status.ok()) status = wrong;
  }
  return Status(StatusCode::kConfig,
                fmt::format("actor_rollout_ref.rollout.multi_turn: the chat template cannot show "
                            "what a tool said: {}; name one that does as data.chat_template",
                            status.message()));
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

Json TurnText::Called(const std::string& id) const {
  if (!shows_calls_) return {{"role", "assistant"}, {"content", "x"}};
  const Json function = {{"name", "f"}, {"arguments", Json::object()}};
  return {{"role", "assistant"},
          {"content", ""},
          {"tool_calls",
           Json::array({Json{{"type", "function"}, {"id", id}, {"function", function}}})}};
}

Result<std::string> TurnText::Text(const std::vector<ToolCall>& calls,
                                   const std::vector<std::string>& results) const {
  // 1. The conversation without the tools' messages, and with them.
  Json messages =
      Json::array({Json{{"role", "user"}, {"content", "x"}}, Called(IdOf(calls[0], 0))});
  KEEL_ASSIGN_OR_RETURN(const std::string before, Render(messages, false));
  for (size_t i = 0; i < results.size(); ++i) {
    messages.push_back({{"role", "tool"},
                        {"name", calls[i].name},
                        {"tool_call_id", IdOf(calls[i], i)},
                        {"content", results[i]}});
  }
  KEEL_ASSIGN_OR_RETURN(const std::string with, Render(messages, true));
  if (!with.starts_with(before)) {
    return Status(StatusCode::kInvalidData,
                  "the conversation with a tool's message does not begin as the one without");
  }
  // 2. Behind the token that ends a turn, which is generated, the template may write more.
  size_t end = std::string::npos;
  for (const int32_t id : options_.stop_ids) {
    const std::string mark = tokenizer_->Decode(std::span(&id, 1), {.skip_special_tokens = false});
    const size_t at = mark.empty() ? std::string::npos : before.rfind(mark);
    if (at == std::string::npos) continue;
    end = end == std::string::npos ? at + mark.size() : std::max(end, at + mark.size());
  }
  return with.substr(end == std::string::npos ? before.size() : end);
}

Result<std::vector<int32_t>> TurnText::Tokens(const std::vector<ToolCall>& calls,
                                              const std::vector<std::string>& results) const {
  KEEL_ASSIGN_OR_RETURN(const std::string text, Text(calls, results));
  std::vector<int32_t> tokens;
  KEEL_RETURN_IF_ERROR(Guarded([&]() -> Status {
    tokens = tokenizer_->Encode(text);
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
