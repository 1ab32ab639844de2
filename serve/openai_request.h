// OpenAiRequest: the body of a POST to /v1/completions or /v1/chat/completions. Pure, torch-free.
//
// Nothing that would change an answer is passed over: a parameter is read, or accepted where it has
// no bearing on the answer (user, metadata, ...), or refused by its name. A null is as if it were
// not there.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "common/json.h"
#include "rollout/sampling.h"
#include "serve/refusal.h"

namespace keel::serve {

enum class Endpoint { kCompletions, kChat };

struct OpenAiRequest {
  // Text, or token ids.
  using Prompt = std::variant<std::string, std::vector<int32_t>>;

  Endpoint endpoint = Endpoint::kCompletions;
  std::string model;                 // "" when none is named
  std::vector<Prompt> prompts;       // of kCompletions
  Json messages, tools;              // of kChat; tools: null when there are none
  bool parallel_tool_calls = true;   // else one at most
  bool echo = false;                 // the prompt stands before the answer
  int n = 1;                         // samples of each prompt
  rollout::SamplingParams sampling;  // without seed and max_tokens
  std::optional<uint64_t> seed;
  std::optional<int64_t> max_tokens;
  bool log_probs = false;  // of the tokens that were chosen
  int64_t likeliest = 0;   // so many alternatives with theirs, in each token's place
  bool stream = false;
  bool include_usage = false;  // in a stream's last chunk
};

inline constexpr int kMostSamples = 128;      // n
inline constexpr size_t kMostPrompts = 1024;  // of one request
inline constexpr size_t kMostStops = 16;

// Fills `request`; what is returned says why not.
std::optional<Refusal> ReadOpenAiRequest(Endpoint endpoint, std::string_view body,
                                         OpenAiRequest* request);

}  // namespace keel::serve
