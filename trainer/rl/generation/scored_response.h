// A response between the engine that generated it and the step that learns from it: what the
// verifier is given, what it says, and the greedy responses that are nothing but a baseline.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "rewards/reward.h"
#include "rollout/engine.h"
#include "trainer/data/prompt_data.h"
#include "trainer/data/rollout_batch.h"

namespace keel::trainer::rl {

// The sample number of ReMax's baseline.
inline constexpr int kGreedySample = -1;

// How the tokens of a prompt's sample are chosen, in a run where they are chosen by `sampling`.
rollout::SamplingParams SamplingOf(const Prompt& prompt, int sample,
                                   rollout::SamplingParams sampling);
// Without a score. `tokenizer` may be null: then without text.
Response ResponseOf(rollout::Completion done, int64_t position, const Prompt& prompt,
                    const model::Tokenizer* tokenizer);
// `ids`: no tokenizer turns them into text.
rewards::RewardSample SampleToVerify(const Response& response, const Prompt& prompt, bool ids);
// A verifier that failed has said nothing: reward.on_error says what becomes of it.
void TakeScore(rewards::RewardResult result, Response* response);

// Throws Error(kDataLoss) where one could not be generated: with what the start checks, only
// weights without finite logits are left, and no reward.on_error is about that.
void RequireGenerated(std::span<const Response> responses);
// Takes the greedy responses out; their scores are the others' baselines.
void TakeBaselines(std::vector<Response>* responses);

}  // namespace keel::trainer::rl
