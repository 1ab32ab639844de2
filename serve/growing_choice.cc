#include "serve/growing_choice.h"

#include <fmt/format.h>

#include <random>
#include <utility>

namespace keel::serve {

namespace {

std::string NewCallId() {
  std::random_device device;
  return fmt::format("call_{:08x}{:08x}{:08x}", device(), device(), device());
}

template <typename T>
const T* At(const std::vector<T>& list, size_t index) {
  return index < list.size() ? &list[index] : nullptr;
}

bool GoesOn(char c) { return (static_cast<unsigned char>(c) & 0xc0) == 0x80; }

}  // namespace

GrowingChoice::GrowingChoice(const OpenAiRequest& request, const Work& work,
                             const ModelWords& words, int index)
    : words_(words),
      prompt_(work.prompts[static_cast<size_t>(index / work.n)]),
      scored_(request.log_probs) {
  all_.index = index;
  all_.scored = scored_;
  all_.with_likeliest = request.likeliest > 0;
  if (request.echo) {
    const auto& prompt = request.prompts[static_cast<size_t>(index / work.n)];
    const auto* text = std::get_if<std::string>(&prompt);
    echo_ = text != nullptr ? *text : words.TextOf(prompt_);
  }
  begun_ = work.sampling.continues_prompt && !echo_ && !words.TextOf(prompt_).empty();
  if (work.shows_calls) {
    calls_.emplace(*words.tool_format(), request.parallel_tool_calls, work.tools);
  }
}

size_t CharacterCount::CountOf(std::string_view more) const {
  const bool within = missing_ > 0 && !more.empty() && GoesOn(more.front());
  return count_ - (within ? 1 : 0);
}

void CharacterCount::Add(std::string_view more) {
  for (const char c : more) {
    if (missing_ > 0 && GoesOn(c)) {
      --missing_;
      continue;
    }
    ++count_;
    const auto byte = static_cast<unsigned char>(c);
    missing_ = byte < 0xc2 || byte > 0xf4 ? 0 : byte < 0xe0 ? 1 : byte < 0xf0 ? 2 : 3;
  }
}

void GrowingChoice::AddScore(int32_t token, std::optional<double> log_prob,
                             const std::vector<rollout::ScoredToken>* likeliest, Choice* added) {
  const ModelWords::TokenText text = words_.TextOf(token, !begun_);
  TokenScore score{text.bytes, log_prob};
  if (likeliest != nullptr) {
    for (const rollout::ScoredToken& one : *likeliest)
      score.likeliest.emplace_back(words_.TextOf(one.token, !begun_).bytes, one.log_prob);
  }
  score.offset = characters_.CountOf(score.text);
  // A prompt that came as text shows those of its special tokens that it spells.
  const bool spelt = !score.text.empty() && spelt_.starts_with(score.text);
  if (!text.special || spelt) {
    characters_.Add(score.text);
    begun_ = true;
    spelt_.remove_prefix(spelt ? score.text.size() : 0);
  }
  added->scores.push_back(std::move(score));
}

// Nothing comes before a prompt's first token, which is no chance then.
void GrowingChoice::Echo(const Piece& piece, Choice* added) {
  const std::string echo = *std::exchange(echo_, {});
  added->text = echo + added->text;
  spelt_ = echo;
  for (size_t i = 0; scored_ && i < prompt_.size(); ++i) {
    if (i == 0) {
      AddScore(prompt_[i], {}, nullptr, added);
      continue;
    }
    const float* log_prob = At(piece.prompt_log_probs, i - 1);
    AddScore(prompt_[i], log_prob != nullptr ? *log_prob : 0, At(piece.prompt_likeliest, i - 1),
             added);
  }
  spelt_ = {};
}

void GrowingChoice::AddCalls(std::vector<turns::ToolCall> calls, Choice* added) {
  added->first_call = all_.calls.size();
  for (turns::ToolCall& call : calls) {
    added->calls.push_back({call.id.empty() ? NewCallId() : call.id, call.name,
                            call.arguments.dump(-1, ' ', false, Json::error_handler_t::replace)});
  }
}

Choice GrowingChoice::Add(const Piece& piece) {
  Choice added{.index = all_.index,
               .text = piece.text,
               .finish = piece.finish,
               .scored = scored_,
               .with_likeliest = all_.with_likeliest};
  if (calls_) {
    ToolCallStream::Part part = calls_->Add(piece.text, piece.last());
    added.text = std::move(part.content);
    AddCalls(std::move(part.calls), &added);
  }
  if (echo_ && piece.error.ok()) Echo(piece, &added);
  for (size_t i = 0; scored_ && i < piece.tokens.size(); ++i) {
    const float* log_prob = At(piece.log_probs, i);
    AddScore(piece.tokens[i], log_prob != nullptr ? *log_prob : 0, At(piece.likeliest, i), &added);
  }
  all_.text += added.text;
  all_.scores.insert(all_.scores.end(), added.scores.begin(), added.scores.end());
  all_.calls.insert(all_.calls.end(), added.calls.begin(), added.calls.end());
  if (added.finish == "stop" && !all_.calls.empty()) added.finish = "tool_calls";
  all_.finish = added.finish;
  return added;
}

}  // namespace keel::serve
