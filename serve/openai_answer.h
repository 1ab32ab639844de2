// What /v1/completions, /v1/chat/completions and /v1/models answer, as JSON, and as the events of a
// stream. Pure, torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"
#include "serve/openai_request.h"
#include "serve/refusal.h"

namespace keel::serve {

// What stands at the top of an answer, and of each chunk of it.
struct AnswerHead {
  Endpoint endpoint = Endpoint::kCompletions;
  std::string id;
  int64_t created = 0;  // seconds since 1970
  std::string model;
  std::string weights = {};  // the checkpoint's, as system_fingerprint; "": not said
};

struct TokenScore {
  std::string text;                // of this token alone; a part of a character as its bytes
  std::optional<double> log_prob;  // none of a text's first
  std::vector<std::pair<std::string, double>> likeliest = {};
  size_t offset = 0;  // of the character of the choice's text that it begins with, or is a part of
};

// A call of a tool as OpenAI's API has it.
struct CallOfTool {
  std::string id, name;
  std::string arguments;  // JSON
};

// A choice of an answer, or what a chunk adds to one.
struct Choice {
  int index = 0;
  std::string text = {};
  std::string finish = {};  // "stop", "length", "tool_calls"; "" while it goes on
  bool scored = false;
  std::vector<TokenScore> scores = {};  // when scored
  bool with_likeliest = false;          // of a completion
  std::vector<CallOfTool> calls = {};   // of a conversation
  size_t first_call = 0;                // calls of this choice before them
};

struct Usage {
  int64_t prompt_tokens = 0;
  int64_t completion_tokens = 0;
};

Json WholeAnswer(const AnswerHead& head, const std::vector<Choice>& choices, const Usage& usage);

// The first chunk of a conversation's choice, which says whose words follow.
Json RoleChunk(const AnswerHead& head, int index);
Json Chunk(const AnswerHead& head, const Choice& added);
Json UsageChunk(const AnswerHead& head, const Usage& usage);
// The event of a stream that carries this; text that is no UTF-8 becomes U+FFFD.
std::string Event(const Json& chunk);
inline constexpr std::string_view kLastEvent = "data: [DONE]\n\n";

Json ErrorAnswer(const Refusal& refusal);
Json ModelList(const std::string& name, int64_t created, int64_t max_model_len);

// JSON as it goes out; text that is no UTF-8 becomes U+FFFD.
std::string Written(const Json& json);

}  // namespace keel::serve
