// The policy's loss of a micro-batch as a function of its tokens' log-probabilities and entropies,
// differentiable in both. Losses and metrics are verl's (verl/trainer/ppo/core_algos.py), vespo's
// TRL's (trl/trainer/grpo_trainer.py).
//
// Under tensor parallelism every rank of the group computes the same loss from the same inputs.
// Pure; called from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/algorithms/choices.h"
#include "trainer/algorithms/covariance_choice.h"
#include "trainer/algorithms/kl.h"
#include "trainer/algorithms/loss_aggregation.h"
#include "trainer/algorithms/loss_totals.h"
#include "trainer/algorithms/rollout_correction_options.h"

namespace keel::trainer::rl {

// VESPO's weight of a sequence with ratio w: e^lambda w^k e^(-lambda w), 1 at w = 1; by the sign of
// the advantage.
struct VespoOptions {
  double k_pos = 2.0;
  double lambda_pos = 3.0;
  double k_neg = 3.0;
  double lambda_neg = 2.0;
};

// The loss where the rollout's log-probabilities are the old ones. `level`: the weights of
// kReinforce, the current ratio to the rollout by token or sequence; larger ones than `upper` are
// cut to it, with `lower` those outside of both are 0. None: all 1. `rules`: tokens that the
// current policy's ratio rejects have no part in pg_loss; they still count in entropy and KL, and
// in the denominators, which are of the mini-batch before any forward.
struct BypassOptions {
  BypassLoss loss = BypassLoss::kPpoClip;
  std::optional<ImportanceLevel> level;
  double upper = 2;
  std::optional<double> lower;
  std::vector<RejectionRule> rules;
};

struct PolicyLossOptions {
  PolicyLossMode mode = PolicyLossMode::kVanilla;
  double clip_ratio_low = 0.2;
  double clip_ratio_high = 0.2;
  double clip_ratio_c = 3.0;  // above 1
  double tau_pos = 1.0;       // of sapo, for advantages above 0
  double tau_neg = 1.05;      // and for others
  CovarianceOptions covariance;
  double ppo_kl_coef = 0.1;  // of kl_cov
  double dro_beta = 0;       // of dro: above 0
  VespoOptions vespo;
  BypassOptions bypass;  // of bypass_mode
  // Wang et al. 2025: the share of the mini-batch's tokens, those of highest entropy, that are
  // learnt from. Below 1: PolicyLossInputs::uncertain says which.
  double top_entropy_quantile = 1;
  LossAggregation aggregation = LossAggregation::kTokenMean;
  double entropy_coeff = 0;
  bool use_kl_loss = false;
  double kl_loss_coef = 0.001;
  KlKind kl_loss_type;
  // TRL's use_bias_correction_kl: the estimate of a token times its ratio, of gspo the sequence's,
  // whose gradient it has too.
  bool kl_times_ratio = false;
  // DeepSeek-V3.2's off-policy mask (TRL's key): tokens of negative advantage have no loss where
  // the mean over their sequence of sampling - current log-probabilities is above this.
  std::optional<double> off_policy_mask_threshold;
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
  // off_policy_mask_threshold: of the policy that sampled; undefined: old_log_probs.
  at::Tensor sampling_log_probs;
  at::Tensor chosen;  // clip_cov, kl_cov: not 0 where ChooseByCovariance says so
  // top_entropy_quantile below 1: 0 where ChooseByEntropy leaves the token out, else what its
  // entropy weighs in the bonus.
  at::Tensor uncertain;
};

// Sums over micro-batches and ranks (one of each TP group, last stages) give the mini-batch's
// values.
struct PolicyLossSums {
  double pg_loss = 0;  // shares that are final as they are
  double entropy = 0;
  double kl_loss = 0;
  double clipped = 0;  // tokens
  double clipped_lower = 0;
  double ppo_kl = 0;  // sum over tokens of old - new (kl_cov: its size), cut to +-20 by most modes
  double tokens = 0;
  double off_policy = 0;      // tokens without loss for off_policy_mask_threshold
  double rejected = 0;        // tokens, by BypassOptions::rules
  double learnt_entropy = 0;  // sum over the tokens that are learnt from
  double learnt_tokens = 0;   // all, but with top_entropy_quantile

  // The members above, in their order.
  using Totals = LossTotals<11>;
  static PolicyLossSums Of(const std::array<double, 11>& values);
  // actor/{pg_loss,pg_clipfrac,pg_clipfrac_lower,ppo_kl,entropy,kl_loss,off_policy_masked,
  // rollout_rs_masked_fraction}
  std::map<std::string, double> Metrics(const PolicyLossOptions& options) const;
};

struct PolicyLossResult {
  at::Tensor loss;  // fp32 scalar: pg_loss - entropy_coeff * entropy + kl_loss_coef * kl_loss
  PolicyLossSums::Totals totals;
  PolicyLossSums sums() const { return PolicyLossSums::Of(totals.Read()); }
};

// Throws Error(kInternal) when an input that the options need is undefined or has another length.
PolicyLossResult PolicyLoss(const PolicyLossInputs& inputs, const PolicyLossOptions& options,
                            const LossDenominators& denominators);

// The estimate per token, differentiable in log_probs; see EstimateKl.
at::Tensor KlPenalty(const at::Tensor& log_probs, const at::Tensor& ref_log_probs, KlKind kind);

}  // namespace keel::trainer::rl
