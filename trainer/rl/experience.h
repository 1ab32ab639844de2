// Experience: what a step's responses are worth, per response token, before anything is learnt from
// them: log-probabilities, reference, values, rewards, corrections, advantages. The same on every
// rank.
#pragma once

#include <map>
#include <string>
#include <vector>

#include "parallel/context.h"
#include "trainer/algorithms/kl.h"
#include "trainer/config/config.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/engine/train_engine.h"
#include "trainer/metrics/step_line.h"
#include "trainer/rl/role_passes.h"

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

struct Experience {
  std::vector<float> old_log_probs;  // [N], all; empty when PolicyActsInUpdate
  std::vector<float> ref_log_probs;
  std::vector<float> values;
  std::vector<float> weights;  // of importance; empty: all 1
  std::vector<float> advantages;
  std::vector<float> returns;
};

// The step's only update, of `updates`, is of the policy that acted, and nothing that comes before
// it asks for that policy's log-probabilities: they are those of the update's own forward, to the
// bit, and no pass of their own has to find them.
bool PolicyActsInUpdate(const RlRun& run, size_t updates);

// What the policy that acted was like: its entropy, and how far the rollout's log-probabilities are
// from its own where the rollout gave them. Of what it is given: true on rank 0 alone.
void AddPolicyMetrics(const RolloutBatch& batch, const TokenLogProbs& policy, StepLine* metrics);

// `updates`: the first epoch's mini-batches, so that the log-probabilities are those that the first
// update computes again, to the bit. May take tokens off batch->mask (rejection). Adds metrics and
// timing_s/{old_log_prob,ref,values,adv}. Collective over all ranks.
Experience MakeExperience(const RlRun& run, const std::vector<MiniBatch>& updates, KlController* kl,
                          RolloutBatch* batch, StepLine* metrics);

}  // namespace keel::trainer::rl
