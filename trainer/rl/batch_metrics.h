// What a step's responses look like: lengths and scores, under verl's names. Pure, torch-free.
#pragma once

#include <cstdint>

#include "trainer/data/rollout_batch.h"
#include "trainer/metrics/step_line.h"

namespace keel::trainer::rl {

// response_length/{mean,max,min,clip_ratio}, prompt_length/..., critic/score/...; the ratios are of
// those that reach `max_response` and `max_prompt` tokens.
void AddBatchMetrics(const RolloutBatch& batch, int64_t max_prompt, int64_t max_response,
                     StepLine* line);

}  // namespace keel::trainer::rl
