// Which tokens of a mini-batch a loss is of that learns at the forks alone: those at which the
// policy's entropy is highest (Wang et al. 2025, arXiv 2506.01939; TRL's get_high_entropy_mask).
//
// The share is of all tokens of the mini-batch, so the choice is made once for it and handed to its
// micro-batches. Pure, thread-safe, torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

namespace keel::trainer::rl {

// [N], 1 at those of `tokens` whose entropy is not below the quantile 1 - `share` of them all,
// which is interpolated linearly (torch.quantile), by more than a millionth of it, which is
// rounding. `entropies` and `mask` are [N]; a token without the mask is not counted and not chosen.
// Throws Error(kInternal) when their lengths differ.
std::vector<uint8_t> ChooseByEntropy(std::span<const float> entropies,
                                     std::span<const uint8_t> mask, std::span<const int64_t> tokens,
                                     double share);

}  // namespace keel::trainer::rl
