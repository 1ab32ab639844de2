// Experience: what a step's responses are worth, per response token, before anything is learnt from
// them: log-probabilities, reference, values, rewards, corrections, advantages.
//
// Rank 0 makes it of the whole batch, since advantages compare responses with each other, and hands
// each rank that of its own share.
#pragma once

#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "parallel/groups/context.h"
#include "trainer/algorithms/kl.h"
#include "trainer/algorithms/rollout_correction_options.h"
#include "trainer/config/config.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/engine/train_engine.h"
#include "trainer/metrics/step_line.h"
#include "trainer/rl/learn/role_passes.h"

namespace keel::trainer::rl {

// The models of a run. Null where the configuration needs none.
struct Roles {
  TrainEngine* actor = nullptr;
  TrainEngine* ref = nullptr;
  TrainEngine* critic = nullptr;
};

// A run, as its steps see it. All must outlive what is made of it.
struct RlRun {
  const Config& config;
  Roles roles;
  parallel::ParallelContext& context;
  RlBatchOptions options;  // of the actor's micro-batches
};

// Per token of the rank's share, [H]; while rank 0 makes it, of the whole batch, [N].
struct Experience {
  std::vector<float> old_log_probs;  // empty when PolicyActsInUpdate
  std::vector<float> ref_log_probs;  // empty without a reference
  std::vector<float> values;         // empty without a critic
  std::vector<float> weights;        // of importance; empty: all 1
  // As the rollout gave them, for off_policy_mask_threshold; empty: it gave none, or none is asked.
  std::vector<float> sampling_log_probs;
  std::vector<float> advantages;
  std::vector<float> returns;

  // Of the whole batch, on rank 0, for a loss that chooses among all tokens of an update.
  struct Whole {
    std::vector<float> old_log_probs, old_entropies, advantages;
    std::vector<uint8_t> mask;
  };
  Whole whole;

  std::array<std::vector<float>*, 7> Columns() {
    return {&old_log_probs,      &ref_log_probs, &values, &weights,
            &sampling_log_probs, &advantages,    &returns};
  }
};

// The step's only update, of `updates`, is of the policy that acted, and nothing that comes before
// it asks for that policy's log-probabilities: they are those of the update's own forward, to the
// bit, and no pass of their own has to find them.
bool PolicyActsInUpdate(const RlRun& run, size_t updates);

// What the policy that acted was like: its entropy, and how far the rollout's log-probabilities are
// from its own where the rollout gave them. For rank 0.
void AddPolicyMetrics(const RolloutBatch& batch, const TokenLogProbs& policy, StepLine* metrics);

// The section as ValidateConfig has found it right.
RolloutCorrectionOptions CorrectionOf(const RolloutCorrectionSection& wanted);

// What the updates themselves found of each token, at its first one: with bypass_mode
// rollout_corr/*, else what AddPolicyMetrics says. For rank 0.
void AddUpdateMetrics(const RolloutCorrectionSection& wanted, const RolloutBatch& batch,
                      const TokenLogProbs& policy, StepLine* metrics);

// `updates`: the first epoch's mini-batches, so that the log-probabilities are those that the first
// update computes again, to the bit. `whole`, rank 0's alone, may lose tokens of its mask
// (rejection), and so does the share. `kl` is rank 0's to move on. Adds timing_s/{old_log_prob,ref,
// values,adv}, and on rank 0 metrics. Collective over all ranks.
Experience MakeExperience(const RlRun& run, const std::vector<MiniBatch>& updates, KlController* kl,
                          RolloutBatch* whole, BatchShare* share, StepLine* metrics);

}  // namespace keel::trainer::rl
