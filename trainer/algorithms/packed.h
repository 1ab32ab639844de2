// How the RL code sees many responses: token vectors of one sequence after another, and the
// boundaries between them. The same form on the host (a step's whole batch) and in tensors (a
// micro-batch); nothing is padded, so nothing depends on a padded width. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>

namespace keel::trainer::rl {

// Sequence s is tokens [boundaries[s], boundaries[s + 1]). A token with mask 0 was not written by
// the policy, or is not to be learnt from: prompts, tool output, rejected samples. Views; own
// nothing.
struct PackedView {
  std::span<const int64_t> boundaries;  // [S + 1], from 0 to N
  std::span<const uint8_t> mask;        // [N]

  size_t sequences() const { return boundaries.empty() ? 0 : boundaries.size() - 1; }
  size_t tokens() const { return mask.size(); }
  size_t begin(size_t s) const { return static_cast<size_t>(boundaries[s]); }
  size_t end(size_t s) const { return static_cast<size_t>(boundaries[s + 1]); }
};

// Throws Error(kInternal) unless the boundaries rise from 0 to the mask's size.
void CheckPacked(const PackedView& view);

// Tokens of the policy in sequence s, and in all.
int64_t PolicyTokens(const PackedView& view, size_t s);
int64_t PolicyTokens(const PackedView& view);

// What losses are divided by: counts over the whole mini-batch and all ranks, so that no split of
// it changes a gradient.
struct LossDenominators {
  int64_t tokens = 0;       // of the policy
  int64_t sequences = 0;    // with at least one such token
  double scale_factor = 1;  // of seq-mean-token-sum-norm
};
LossDenominators CountDenominators(const PackedView& view, double scale_factor);

}  // namespace keel::trainer::rl
