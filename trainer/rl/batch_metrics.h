// What a step's responses look like: lengths and scores, under verl's names. Pure, torch-free.
#pragma once

#include <cstdint>

#include "trainer/data/rollout_batch.h"
#include "trainer/metrics/step_line.h"

namespace keel::trainer::rl {

// response_length/{mean,max,min,clip_ratio}, response_length_non_aborted/..., prompt_length/...,
// critic/score/...; the ratios are of those that reach `max_response` and `max_prompt` tokens, and
// of responses also those that their row's own bound has cut.
// response/aborted_ratio is of those without a token; timing_per_token_ms/gen of timing_s/gen.
void AddBatchMetrics(const RolloutBatch& batch, int64_t max_prompt, int64_t max_response,
                     StepLine* line);
// reward/<name>/mean of what verifiers give beside the score, and of each of several rewards, over
// the responses that have it; of the first kMostRewardNames names in their order.
inline constexpr size_t kMostRewardNames = 64;
void AddRewardMetrics(const RolloutBatch& batch, StepLine* line);
// num_turns/{mean,max,min}, counted as verl does: the prompt's, and each of the model and of tools;
// tools/{calls,errors,timeouts,truncated}, tool_rewards/{mean,max,min} of each response's sum.
void AddTurnMetrics(const RolloutBatch& batch, StepLine* line);

}  // namespace keel::trainer::rl
