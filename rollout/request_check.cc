#include "rollout/request_check.h"

#include <fmt/format.h>

#include <string>

namespace keel::rollout {

namespace {

Status CheckSoFar(const Request& request, const RequestLimits& limits) {
  const Partial& so_far = request.so_far;
  const auto bad = [](const std::string& what) {
    return Status(StatusCode::kInvalidData, "the response so far: " + what);
  };
  if (const char* problem = ProblemOf(so_far.spans, so_far.size())) return bad(problem);
  if (const char* problem = ProblemOf(so_far.given, so_far.size())) return bad(problem);
  if (so_far.size() == 0) return Status::Ok();
  const int64_t vocabulary = limits.vocabulary;
  for (const int32_t id : so_far.tokens) {
    if (id < 0 || id >= vocabulary)
      return bad(fmt::format("token {} is outside the vocabulary of {}", id, vocabulary));
  }
  if (so_far.size() > request.sampling.max_tokens) {
    return bad(fmt::format("{} tokens, more than max_tokens {}", so_far.size(),
                           request.sampling.max_tokens));
  }
  if (std::ssize(so_far.log_probs) != (limits.log_probs ? so_far.size() : 0)) {
    return bad(
        fmt::format("{} log-probabilities of {} tokens", so_far.log_probs.size(), so_far.size()));
  }
  if (so_far.spans.back().version > limits.weight_version) {
    return bad(fmt::format("tokens of weight version {}, later than the engine's {}",
                           so_far.spans.back().version, limits.weight_version));
  }
  if (request.sampling.likeliest > 0)
    return bad("nothing is known of the likeliest tokens, which are asked for");
  return request.sampling.wants_prompt()
             ? bad("nothing is known of the prompt's log-probabilities, which are asked for")
             : Status::Ok();
}

}  // namespace

Status CheckRequest(const Request& request, const RequestLimits& limits) {
  if (request.prompt.empty()) return {StatusCode::kInvalidData, "the prompt has no tokens"};
  const int64_t vocabulary = limits.vocabulary;
  for (const int32_t id : request.prompt) {
    if (id < 0 || id >= vocabulary) {
      return {StatusCode::kInvalidData,
              fmt::format("the prompt's token {} is outside the vocabulary of {}", id, vocabulary)};
    }
  }
  const auto prompt = static_cast<int64_t>(request.prompt.size());
  const bool generates = request.sampling.max_tokens > 0;
  if (!generates && prompt > limits.max_model_len) {
    return {StatusCode::kInvalidData,
            fmt::format("{} tokens to score, more than the {} positions that the model has; cut "
                        "the row, or score it in parts",
                        prompt, limits.max_model_len)};
  }
  const auto problems = request.sampling.Validate();
  if (!problems.empty())
    return {StatusCode::kInvalidData, fmt::format("{}", fmt::join(problems, "; "))};
  if (!request.sampling.stop.empty() && !limits.has_tokenizer) {
    return {StatusCode::kInvalidData,
            "stop strings need a tokenizer, and the engine has none: use stop_token_ids"};
  }
  return CheckSoFar(request, limits);
}

}  // namespace keel::rollout
