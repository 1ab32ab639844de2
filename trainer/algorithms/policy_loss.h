// The policy's loss of a micro-batch as a function of its tokens' log-probabilities and entropies,
// differentiable in both. Losses and metrics are verl's (verl/trainer/ppo/core_algos.py).
//
// Under tensor parallelism every rank of the group computes the same loss from the same inputs.
// Pure; called from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "trainer/algorithms/choices.h"
#include "trainer/algorithms/kl.h"
#include "trainer/algorithms/loss_aggregation.h"

namespace keel::trainer::rl {

struct PolicyLossOptions {
  PolicyLossMode mode = PolicyLossMode::kVanilla;
  double clip_ratio_low = 0.2;
  double clip_ratio_high = 0.2;
  double clip_ratio_c = 3.0;  // above 1
  LossAggregation aggregation = LossAggregation::kTokenMean;
  double entropy_coeff = 0;
  bool use_kl_loss = false;
  double kl_loss_coef = 0.001;
  KlKind kl_loss_type;
};

// All [T] fp32 but the layout; values where the mask is not set are not looked at.
struct PolicyLossInputs {
  TokenLayout layout;
  at::Tensor log_probs;      // of the current weights; carries the gradient
  at::Tensor old_log_probs;  // at the start of the step
  at::Tensor advantages;
  at::Tensor entropy;             // carries the gradient; undefined: reported as 0
  at::Tensor ref_log_probs;       // for the KL loss
  at::Tensor rollout_is_weights;  // undefined: all 1
};

// Sums over micro-batches and ranks (one of each TP group, last stages) give the mini-batch's
// values.
struct PolicyLossSums {
  double pg_loss = 0;  // shares that are final as they are
  double entropy = 0;
  double kl_loss = 0;
  double clipped = 0;  // tokens
  double clipped_lower = 0;
  double ppo_kl = 0;  // sum over tokens of old - new, cut to +-20 except for GSPO
  double tokens = 0;

  PolicyLossSums& operator+=(const PolicyLossSums& other);
  // actor/{pg_loss,pg_clipfrac,pg_clipfrac_lower,ppo_kl,entropy,kl_loss}
  std::map<std::string, double> Metrics(const PolicyLossOptions& options) const;
};

struct PolicyLossResult {
  at::Tensor loss;  // fp32 scalar: pg_loss - entropy_coeff * entropy + kl_loss_coef * kl_loss
  PolicyLossSums sums;
};

// Throws Error(kInternal) when an input that the options need is undefined or has another length.
PolicyLossResult PolicyLoss(const PolicyLossInputs& inputs, const PolicyLossOptions& options,
                            const LossDenominators& denominators);

// The estimate per token, differentiable in log_probs; see EstimateKl.
at::Tensor KlPenalty(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, KlKind kind);

}  // namespace keel::trainer::rl
