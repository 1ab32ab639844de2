// What each loss mode makes of a micro-batch's tokens, before they become one number: PolicyLoss's
// first half. Pure.
#pragma once

#include <ATen/ATen.h>

#include "trainer/algorithms/policy_loss.h"

namespace keel::trainer::rl {

// All [T]; undefined: none. Only the losses' gradient is wanted: the caller detaches ppo_kl.
struct TokenLosses {
  at::Tensor losses;
  at::Tensor ppo_kl;         // old - new, of kl_cov its size
  at::Tensor clipped;        // bool
  at::Tensor clipped_lower;  // bool
  bool weighted = false;     // the losses have rollout_is_weights in them
};

// `in`: 0 where the mask is not set.
TokenLosses LossesByToken(const PolicyLossInputs& in, const PolicyLossOptions& options);

// Of the current to the old probabilities, with its gradient: of each token, or, with gspo, of its
// sequence (the geometric mean).
at::Tensor RatioOf(const PolicyLossInputs& in, const PolicyLossOptions& options);

}  // namespace keel::trainer::rl
