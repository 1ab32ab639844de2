// GrowingChoice: one choice of an answer, as its pieces come. Torch-free; used from one thread.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "serve/model_words.h"
#include "serve/openai_answer.h"
#include "serve/openai_request.h"
#include "serve/request_queue.h"
#include "serve/tool_call_stream.h"

namespace keel::serve {

// Counts the characters of a text that comes in parts, which may end within one. A byte that
// belongs to none is one, since it is shown as U+FFFD.
class CharacterCount {
 public:
  void Add(std::string_view more);
  // Of those so far, the one that `more` begins with, or goes on with.
  size_t CountOf(std::string_view more) const;

 private:
  size_t count_ = 0;
  int missing_ = 0;  // bytes of the last one
};

class GrowingChoice {
 public:
  // Choice `index` of the answer to `request`, which became `work`. Both, and `words`, must outlive
  // the calls of this constructor and of Add.
  GrowingChoice(const OpenAiRequest& request, const Work& work, const ModelWords& words, int index);

  // What `piece` adds, also to all().
  Choice Add(const Piece& piece);
  const Choice& all() const { return all_; }

 private:
  void Echo(const Piece& piece, Choice* added);
  void AddScore(int32_t token, std::optional<double> log_prob,
                const std::vector<rollout::ScoredToken>* likeliest, Choice* added);
  void AddCalls(std::vector<turns::ToolCall> calls, Choice* added);

  const ModelWords& words_;
  const std::vector<int32_t>& prompt_;
  const bool scored_;
  std::optional<std::string> echo_;  // what is to stand before the first piece
  std::string_view spelt_;           // of an echo that is being scored, what tokens are left of
  std::optional<ToolCallStream> calls_;
  CharacterCount characters_;  // of the tokens so far, as far as texts show them
  bool begun_ = false;         // there was one that they show, or the prompt's text
  Choice all_;
};

}  // namespace keel::serve
