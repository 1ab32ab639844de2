// Samples and results as JSON, as external verifiers see them; docs/rewards.md shows the protocol.
// Torch-free.
#pragma once

#include <span>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "rewards/reward.h"

namespace keel::rewards {

// {"id", "data_source", "prompt", "response", "ground_truth", "extra_info"}; bytes that are no
// UTF-8 become U+FFFD. Of a response that called tools also turn_rewards. Without a tokenizer
// prompt_ids and response_ids, and no response; a prompt only if the row has a text of it.
std::string SampleText(const RewardSample& sample);

// {"id", "score", "error"?, ...}: further numbers are extra. kInvalidData when id or score is
// missing or the score is not finite. An error's text is made printable, and cut.
Result<RewardResult> ParseResult(const Json& object);

// A result that says `error` for each sample.
std::vector<RewardResult> AllFailed(std::span<const RewardSample> samples,
                                    const std::string& error);

}  // namespace keel::rewards
