// SamplingParams: how the tokens of one request are chosen, and when it ends. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

namespace keel::rollout {

// A token, and its log-probability under the model's own distribution.
struct ScoredToken {
  int32_t token = 0;
  float log_prob = 0;
  friend bool operator==(const ScoredToken&, const ScoredToken&) = default;
};

inline constexpr int64_t kMostLikeliest = 20;

// In this order (that of Hugging Face): repetition penalty, temperature, top-k, top-p, min-p.
struct SamplingParams {
  double temperature = 1.0;  // 0: the likeliest token, the lowest id among equals
  int64_t top_k = -1;        // keep the k likeliest; -1: all
  double top_p = 1.0;        // keep the fewest likeliest that reach this mass
  double min_p = 0.0;        // drop what is below this share of the likeliest
  // Above 1, ids in the prompt or the response so far become less likely (Keskar et al. 2019).
  double repetition_penalty = 1.0;
  int64_t max_tokens = 16;              // of the response
  std::vector<int32_t> stop_token_ids;  // besides the engine's EOS ids; kept in the response
  // Ends the response once its text holds one of them; of one that is the name of a special token,
  // which is left out of texts, once that token is chosen.
  std::vector<std::string> stop;
  bool ignore_eos = false;
  // The response's text goes on behind the prompt's, if that has one: a space before its first word
  // stays, which tokenizers of SentencePiece take off where a text begins.
  bool continues_prompt = false;
  // Token `position` of a response is a function of the logits and of (seed, prompt id, sample,
  // position): of neither companions in the batch nor order of arrival nor replica.
  uint64_t seed = 0;
  bool prompt_log_probs = false;  // also the prompt's own; then max_tokens may be 0
  bool prompt_logits = false;     // and all its logits; implies prompt_log_probs
  // Also so many of the likeliest tokens where one was chosen, and where the prompt's
  // log-probabilities are asked for.
  int64_t likeliest = 0;

  bool wants_prompt() const { return prompt_log_probs || prompt_logits; }
  std::vector<std::string> Validate() const;  // every problem as a sentence
};

}  // namespace keel::rollout
