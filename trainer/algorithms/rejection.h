// Rejection by the current policy: the tokens of a micro-batch that its own forward finds too far
// from the policy that sampled them. CorrectRollout does the same before an update, on the host.
#pragma once

#include <ATen/ATen.h>

#include <span>

#include "trainer/algorithms/loss_aggregation.h"
#include "trainer/algorithms/rollout_correction_options.h"

namespace keel::trainer::rl {

// [T] bool: the tokens that count and pass every rule. `log_ratio` [T]: current - sampling
// log-probabilities. Stays on the tensors' device; no gradient. Source: verl's
// compute_rollout_rejection_mask (verl/trainer/ppo/rollout_corr_helper.py).
at::Tensor KeptTokens(const TokenLayout& layout, const at::Tensor& log_ratio,
                      std::span<const RejectionRule> rules);

}  // namespace keel::trainer::rl
