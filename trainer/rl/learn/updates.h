// The updates of an RL step: the actor's and critic's passes over the mini-batches, epoch by epoch.
// Collective over all ranks; used from the training thread.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "trainer/algorithms/entropy_control.h"
#include "trainer/algorithms/policy_loss.h"
#include "trainer/algorithms/value_loss.h"
#include "trainer/rl/learn/role_passes.h"

namespace keel::trainer::rl {

// What the actor learns from, per response token of the rank's share [H].
struct PolicyTargets {
  std::span<const float> old_log_probs;
  std::span<const float> advantages;
  std::span<const float> ref_log_probs;       // empty without a reference
  std::span<const float> rollout_is_weights;  // empty: all 1
  std::span<const float> sampling_log_probs;  // empty: old_log_probs
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
  // Null: loss.entropy_coeff stays. Else each update's is the controller's, which each update that
  // is applied, and has a token to learn from, moves on, on every rank.
  EntropyController* entropy = nullptr;
  // The update is of the policy that acted: what its forward finds of every response token takes
  // the place of targets.old_log_probs.
  bool acts = false;
  // What the epoch's forwards find of every response token is given back, [N] on rank 0 alone.
  bool tells = false;
  // Where the loss chooses among all tokens of the mini-batch, by covariance, of which this is the
  // draw, or by entropy: whether the epoch's first update is of the policy that
  // targets.old_log_probs are of, so that no forward has to find what it chooses by.
  CovarianceDraw draw;
  bool begins_old = false;
  // Of all tokens [N], on rank 0 alone; for such a loss.
  struct Whole {
    std::span<const float> old_log_probs, old_entropies, advantages;
    std::span<const uint8_t> mask;
  };
  Whole whole;
};
struct CriticUpdate {
  ValueTargets targets;
  ValueLossOptions loss;
  double scale_factor = 1;  // see LossDenominators
};

// Of all updates of an epoch, or of a step.
struct UpdateSums {
  std::map<std::string, double> metrics;  // "actor/pg_loss", ...: means over epochs
  double grad_norm = 0;                   // mean over the updates of the last epoch
  int64_t applied = 0;
  int64_t skipped = 0;                  // loss or norm not finite
  MoveSeconds moves;                    // of all epochs
  std::optional<TokenLogProbs> policy;  // of the epoch that ActorUpdate::tells
  // Counts add up; of metrics, the mean over `epochs` before and this one.
  void AddEpoch(UpdateSums one, int64_t epochs);
};

UpdateSums UpdateActor(TrainEngine& actor, parallel::ParallelContext& context,
                       const BatchShare& share, const EpochUpdates& epoch,
                       const ActorUpdate& update);
UpdateSums UpdateCritic(TrainEngine& critic, parallel::ParallelContext& context,
                        const BatchShare& share, const EpochUpdates& epoch,
                        const CriticUpdate& update);

}  // namespace keel::trainer::rl
