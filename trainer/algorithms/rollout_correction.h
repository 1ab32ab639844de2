// Correction for a rollout whose probabilities are not the trainer's: truncated importance weights
// (Yao et al. 2025), rejection of tokens or sequences that diverge too far, and M2PO's mask.
//
// Computed once over the global batch, on the host, before the updates. Options and numbers are
// verl's (verl/trainer/ppo/rollout_corr_helper.py), M2PO as AReaL has it
// (areal/trainer/ppo/actor.py, there over a rank's share of the batch). Pure, thread-safe,
// torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <span>
#include <string>
#include <vector>

#include "trainer/algorithms/packed.h"
#include "trainer/algorithms/rollout_correction_options.h"

namespace keel::trainer::rl {

struct RolloutCorrection {
  std::vector<float> weights;             // [N], 0 on masked tokens; empty when the level is off
  std::vector<uint8_t> mask;              // [N], the responses' mask without what was rejected
  std::map<std::string, double> metrics;  // "rollout_corr/..."
};

// `trainer`, `rollout`: log-probabilities of the sampled tokens [N] under the trainer's weights at
// the start of the step, and as the rollout gave them. Empty metrics when nothing is to be learnt.
RolloutCorrection CorrectRollout(const PackedView& responses, std::span<const float> trainer,
                                 std::span<const float> rollout,
                                 const RolloutCorrectionOptions& options);

// The gap alone: rollout_corr/{kl, k3_kl, training_ppl, rollout_ppl, log_ppl_diff, chi2_token,
// ...}.
std::map<std::string, double> RolloutGapMetrics(const PackedView& responses,
                                                std::span<const float> trainer,
                                                std::span<const float> rollout);

}  // namespace keel::trainer::rl
