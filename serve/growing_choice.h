// GrowingChoice: one choice of an answer, as its pieces come. Torch-free; used from one thread.
#pragma once

#include <optional>
#include <string>
#include <vector>

#include "serve/model_words.h"
#include "serve/openai_answer.h"
#include "serve/openai_request.h"
#include "serve/request_queue.h"
#include "serve/tool_call_stream.h"

namespace keel::serve {

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
  std::optional<ToolCallStream> calls_;
  size_t characters_ = 0;  // of the tokens so far, as far as texts show them
  bool begun_ = false;     // there was one that they show
  Choice all_;
};

}  // namespace keel::serve
