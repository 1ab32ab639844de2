// What DAPO (Yu et al. 2025) does with rewards and groups before advantages: soft punishment of
// long responses, and dynamic sampling. Pure, torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keel::rewards {

// Added to the score: 0 up to max_response_length - buffer tokens, then linear to -factor at
// max_response_length.
double OverlongPenalty(int64_t response_tokens, int64_t max_response_length, int64_t buffer,
                       double factor);

// Which responses stay: those of groups in which `metric` is not the same everywhere. A group of
// one stays, as nothing could tell it apart. Responses with counted[i] == 0 (their verifier failed)
// do not decide, and stay or go with their group; a group of several in which fewer than two count
// goes. `counted` may be empty: all count.
std::vector<uint8_t> KeepInformativeGroups(std::span<const int64_t> groups,
                                           std::span<const double> metric,
                                           std::span<const uint8_t> counted);

enum class SamplingDecision {
  kEnough,    // train on the first `wanted` groups
  kGenerate,  // one more batch of prompts
  kGiveUp,    // max_num_gen_batches generated and still too few
};
// max_num_gen_batches 0: no limit.
SamplingDecision DecideSampling(int64_t kept_groups, int64_t wanted_groups,
                                int64_t generated_batches, int64_t max_num_gen_batches);

}  // namespace keel::rewards
