// Advantages and returns of a step's responses, from rewards per token.
//
// Computed once over the global batch, on the host, in fp64: every rank that holds the batch gets
// the same bits, whatever the layout. Names and numbers are verl's
// (verl/trainer/ppo/core_algos.py), with two differences, both where a reward would be lost or
// invented there: a reward that stands on a masked token counts for the policy's last token before
// it (the first after it, where there is none before), and a response without any token of the
// policy takes no part in its group. The only one that is left of a larger group has nothing to be
// compared with, and an advantage of 0; a prompt with a single response keeps its score, as in
// verl. Pure, thread-safe, torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "common/status.h"
#include "trainer/algorithms/choices.h"
#include "trainer/algorithms/packed.h"

namespace keel::trainer::rl {

struct AdvantageOptions {
  AdvantageEstimator estimator = AdvantageEstimator::kGrpo;
  double gamma = 1;  // per token of the policy
  double lam = 1;
  bool norm_adv_by_std_in_grpo = true;
  std::vector<double> component_weights = {};  // of gdpo's rewards; empty: all 1
};

struct AdvantageInputs {
  PackedView responses;
  std::span<const float> rewards;   // [N], a KL penalty already taken off
  std::span<const int64_t> groups;  // [S]: responses of one prompt have the same number
  // Where the estimator's traits ask for them:
  std::span<const float> values;     // [N], the critic's, before the update
  std::span<const float> baselines;  // [S], score of the prompt's greedy response
  // [N] each: of the policy that acted, log-probabilities and the sum over the vocabulary of its
  // squared probabilities; and weights of importance, empty: all 1.
  std::span<const float> log_probs = {};
  std::span<const float> sum_pi_squared = {};
  std::span<const float> rollout_is_weights = {};
  std::span<const std::vector<double>> components = {};  // [K][S], rewards by name
};

// 0 on masked tokens.
struct Advantages {
  std::vector<float> advantages;  // [N]
  std::vector<float> returns;     // [N]; what the critic is to predict (GAE: not whitened)
};

// Throws Error(kInternal) when a span that the estimator needs has another length.
Advantages ComputeAdvantages(const AdvantageInputs& inputs, const AdvantageOptions& options);

// A score per response as a reward per token: on the policy's last token, the end mark included.
// A response without such a token has no place for one.
std::vector<float> PlaceScores(const PackedView& responses, std::span<const double> scores);

}  // namespace keel::trainer::rl
