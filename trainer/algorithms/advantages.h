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
#include <string>
#include <vector>

#include "common/status.h"
#include "trainer/algorithms/packed.h"

namespace keel::trainer::rl {

enum class AdvantageEstimator {
  kGae,                        // Schulman et al. 2016; whitened over the batch
  kGrpo,                       // Shao et al. 2024; without the deviation Dr.GRPO, Liu et al. 2025
  kRloo,                       // Ahmadian et al. 2024
  kReinforcePlusPlus,          // Hu et al. 2025; whitened over the batch
  kReinforcePlusPlusBaseline,  // the same with the group's mean for a baseline
  kRemax,                      // Li et al. 2024; the greedy response's score is the baseline
  kGpg,                        // Chu et al. 2025
};

// verl's values of algorithm.adv_estimator, in the enum's order.
std::vector<std::string> AdvantageEstimatorNames();
Result<AdvantageEstimator> ParseAdvantageEstimator(const std::string& name);

struct AdvantageOptions {
  AdvantageEstimator estimator = AdvantageEstimator::kGrpo;
  double gamma = 1;  // per token of the policy: GAE, REINFORCE++
  double lam = 1;    // GAE
  bool norm_adv_by_std_in_grpo = true;
};

struct AdvantageInputs {
  PackedView responses;
  std::span<const float> rewards;    // [N], a KL penalty already taken off
  std::span<const int64_t> groups;   // [S]: responses of one prompt have the same number
  std::span<const float> values;     // [N], GAE: the critic's, before the update
  std::span<const float> baselines;  // [S], ReMax: score of the prompt's greedy response
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
