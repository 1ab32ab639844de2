// Request, Completion's torch-free part, and Sequence: a request on its way through the engine.
#pragma once

#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "rollout/block_manager.h"
#include "rollout/partial.h"
#include "rollout/sampling.h"

namespace keel::rollout {

// One sample of a prompt. Requests with the same prompt id and prompt, in the engine at the same
// time, compute the prompt once.
struct Request {
  uint64_t prompt_id = 0;
  int sample = 0;  // which of the prompt's n
  std::vector<int32_t> prompt;
  SamplingParams sampling;
  // Of the response, which goes on behind it; max_tokens counts these, too.
  Partial so_far = {};
  // The prompt id that the draws are made with, where many requests are in the engine whose draws
  // must not depend on the ids that tell them apart; nothing: prompt_id.
  std::optional<uint64_t> draws_as = {};
};

enum class FinishReason {
  kStop,    // an EOS or stop id, which is the last token, or a stop string
  kLength,  // max_tokens; no EOS is added
  kError,   // see the completion's error
};
std::string_view FinishReasonName(FinishReason reason);  // "stop", "length", "error"

// A request and what was made of it so far. Owned by the engine; the scheduler orders it.
struct Sequence {
  Sequence(int64_t arrival_number, Request r)
      : arrival(arrival_number),
        request(std::move(r)),
        tokens(request.prompt),
        prompt_size(static_cast<int64_t>(request.prompt.size())),
        log_probs(request.so_far.log_probs),
        spans(request.so_far.spans) {
    tokens.insert(tokens.end(), request.so_far.tokens.begin(), request.so_far.tokens.end());
  }

  int64_t size() const { return static_cast<int64_t>(tokens.size()); }
  int64_t generated() const { return size() - prompt_size; }
  std::span<const int32_t> response() const {
    return std::span(tokens).subspan(static_cast<size_t>(prompt_size));
  }
  Partial so_far() const {
    return {{response().begin(), response().end()},
            log_probs,
            spans,
            request.so_far.given,
            request.so_far.tool_memory};
  }
  // Tokens of the response behind the last given one.
  std::span<const int32_t> turn() const {
    const std::vector<TokenRange>& given = request.so_far.given;
    return response().subspan(given.empty() ? 0 : static_cast<size_t>(given.back().end));
  }

  const int64_t arrival;  // orders the queue
  const Request request;
  std::vector<int32_t> tokens;  // prompt, then response
  const int64_t prompt_size;
  std::vector<float> log_probs;         // of the response
  std::vector<float> prompt_log_probs;  // of prompt[1], ... when asked for
  // SamplingParams::likeliest where these two were chosen, or not.
  std::vector<std::vector<ScoredToken>> likeliest, prompt_likeliest;
  std::vector<VersionSpan> spans;  // of the response
  bool in_step = false;            // chosen for the step that is being planned
  int64_t computed = 0;            // leading tokens whose keys and values stand in `table`
  int64_t preempted = 0;           // times
  int64_t once_computed = 0;       // leading tokens that were, before the last preemption
  BlockTable table;
};

}  // namespace keel::rollout
