// The updates of an RL step: which responses form which mini-batch, and the actor's and critic's
// passes over them. Collective over all ranks; used from the training thread.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/algorithms/policy_loss.h"
#include "trainer/algorithms/value_loss.h"
#include "trainer/rl/role_passes.h"

namespace keel::trainer::rl {

// Mini-batches of `prompts_each` prompts with all their responses, in order, or shuffled by
// (seed, step, epoch). A last one may be smaller.
std::vector<MiniBatch> CutIntoMiniBatches(const RolloutBatch& batch, int64_t prompts_each,
                                          bool shuffle, uint64_t seed, int64_t step, int64_t epoch);

// What the actor learns from, per response token [N].
struct PolicyTargets {
  std::span<const float> old_log_probs;
  std::span<const float> advantages;
  std::span<const float> ref_log_probs;       // empty without a reference
  std::span<const float> rollout_is_weights;  // empty: all 1
};
struct ValueTargets {
  std::span<const float> old_values;
  std::span<const float> returns;
};

// Of all updates of a step.
struct UpdateSums {
  std::map<std::string, double> metrics;  // "actor/pg_loss", ...
  double grad_norm = 0;                   // mean over updates
  int64_t applied = 0;
  int64_t skipped = 0;  // loss or norm not finite
  MoveSeconds moves;
};

// One update per mini-batch. `t`: Adam's count before the first.
// With `policy` the update is of the policy that acted: what its forward finds of every response
// token takes the place of targets.old_log_probs, and is given back there.
UpdateSums UpdateActor(TrainEngine& actor, parallel::ParallelContext& context,
                       const RolloutBatch& batch, const std::vector<MiniBatch>& updates,
                       const PolicyTargets& targets, const PolicyLossOptions& loss,
                       double scale_factor, double temperature, const RlBatchOptions& options,
                       double lr, int64_t t, TokenLogProbs* policy);
UpdateSums UpdateCritic(TrainEngine& critic, parallel::ParallelContext& context,
                        const RolloutBatch& batch, const std::vector<MiniBatch>& updates,
                        const ValueTargets& targets, const ValueLossOptions& loss,
                        const RlBatchOptions& options, double lr, int64_t t);

}  // namespace keel::trainer::rl
