#include "trainer/rl/generation/scored_response.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <utility>

namespace keel::trainer::rl {

rollout::SamplingParams SamplingOf(const Prompt& prompt, int sample,
                                   rollout::SamplingParams sampling) {
  if (sample == kGreedySample) sampling.temperature = 0;
  if (prompt.max_tokens > 0) sampling.max_tokens = std::min(sampling.max_tokens, prompt.max_tokens);
  return sampling;
}

Response ResponseOf(rollout::Completion done, int64_t position, const Prompt& prompt,
                    const model::Tokenizer* tokenizer) {
  Response r;
  r.position = position;
  r.row = prompt.id;
  r.sample = done.sample;
  r.data_source = prompt.data_source;
  r.prompt = prompt.tokens;
  r.tokens = std::move(done.tokens);
  r.log_probs = std::move(done.log_probs);
  r.given = std::move(done.given);
  r.tools = ValueOrThrow(turns::ToolMemory::Parse(done.tool_memory)).use;
  r.finish = rollout::FinishReasonName(done.finish);
  r.weight_version = done.weight_version;
  if (!done.error.ok()) r.error = done.error.ToString();
  if (tokenizer != nullptr) r.text = tokenizer->Decode(r.tokens);
  return r;
}

rewards::RewardSample SampleToVerify(const Response& response, const Prompt& prompt, bool ids) {
  rewards::RewardSample sample;
  sample.data_source = response.data_source;
  sample.prompt = prompt.text;
  sample.response = response.text;
  if (ids) {
    sample.prompt_ids = response.prompt;
    sample.response_ids = response.tokens;
  }
  if (response.tools.calls > 0) sample.turn_rewards = response.tools.rewards;
  sample.ground_truth = prompt.ground_truth;
  sample.extra_info = prompt.extra_info;
  return sample;
}

void TakeScore(rewards::RewardResult result, Response* response) {
  response->score = result.ok() ? result.score : 0.0;
  response->extra = std::move(result.extra);
  response->answer = std::move(result.answer);
  response->error = std::move(result.error);
}

void RequireGenerated(std::span<const Response> responses) {
  for (const Response& r : responses) {
    if (r.finish != rollout::FinishReasonName(rollout::FinishReason::kError)) continue;
    throw Error(StatusCode::kDataLoss,
                fmt::format("no response to row {} could be generated with weight version {}: {}; "
                            "start again from a checkpoint before that update",
                            r.row, r.weight_version, r.error));
  }
}

void TakeBaselines(std::vector<Response>* responses) {
  std::map<int64_t, Response> baselines;
  for (const Response& r : *responses)
    if (r.sample == kGreedySample) baselines[r.position] = r;
  std::erase_if(*responses, [](const Response& r) { return r.sample == kGreedySample; });
  for (Response& r : *responses) {
    const Response& greedy = baselines.at(r.position);
    r.baseline = greedy.score;
    r.baseline_tokens = static_cast<int64_t>(greedy.tokens.size());
    if (!greedy.error.empty()) r.baseline_error = "the greedy response: " + greedy.error;
  }
}

}  // namespace keel::trainer::rl
