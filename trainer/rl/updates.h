// The updates of an RL step: which responses form which mini-batch, and the actor's and critic's
// passes over them, epoch by epoch. Collective over all ranks; used from the training thread.
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

// Which responses an update takes: those of `prompts_each` prompts, in order, or shuffled by (seed,
// step, epoch).
struct MiniBatchOptions {
  int64_t prompts_each = 1;
  bool shuffle = false;
  uint64_t seed = 0;
};
// All of them; the last may be smaller. Not collective.
std::vector<MiniBatch> CutIntoMiniBatches(const RolloutBatch& batch,
                                          const MiniBatchOptions& options, int64_t step,
                                          int64_t epoch);

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

// One epoch: an update for each of `updates`.
struct EpochUpdates {
  std::vector<MiniBatch> updates;
  RlBatchOptions options;
  double lr = 0;
  int64_t t = 0;  // applied updates before the first: Adam's count
};
struct ActorUpdate {
  PolicyTargets targets;
  PolicyLossOptions loss;
  double scale_factor = 1;  // see LossDenominators
  double temperature = 1;
  // The update is of the policy that acted: what its forward finds of every response token takes
  // the place of targets.old_log_probs, and is given back, on rank 0 alone.
  bool acts = false;
  // Where the loss chooses tokens by covariance: its draw, and whether the epoch's first update is
  // of the policy that targets.old_log_probs are of, so that no forward has to find them again.
  CovarianceDraw draw;
  bool begins_old = false;
};
struct CriticUpdate {
  ValueTargets targets;
  ValueLossOptions loss;
};

// Of all updates of an epoch, or of a step.
struct UpdateSums {
  std::map<std::string, double> metrics;  // "actor/pg_loss", ...: means over epochs
  double grad_norm = 0;                   // mean over the updates of the last epoch
  int64_t applied = 0;
  int64_t skipped = 0;   // loss or norm not finite
  MoveSeconds moves;     // of the last epoch
  TokenLogProbs policy;  // where ActorUpdate::acts
  // Counts add up; of metrics, the mean over `epochs` before and this one.
  void AddEpoch(UpdateSums one, int64_t epochs);
};

UpdateSums UpdateActor(TrainEngine& actor, parallel::ParallelContext& context,
                       const RolloutBatch& batch, const EpochUpdates& epoch,
                       const ActorUpdate& update);
UpdateSums UpdateCritic(TrainEngine& critic, parallel::ParallelContext& context,
                        const RolloutBatch& batch, const EpochUpdates& epoch,
                        const CriticUpdate& update);

}  // namespace keel::trainer::rl
