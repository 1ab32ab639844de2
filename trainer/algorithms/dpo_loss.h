// Direct preference optimization on pairs of answers: TRL's losses (trl/trainer/dpo_trainer.py),
// one or several with weights, on scores that a divergence makes of the ratios to the reference
// (Wang et al. 2023), and a supervised term on the preferred answers. Pure; called from the
// training thread.
#pragma once

#include <ATen/ATen.h>

#include <array>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "trainer/algorithms/choices.h"
#include "trainer/algorithms/loss_aggregation.h"
#include "trainer/algorithms/loss_totals.h"

namespace keel::trainer::rl {

// One of several losses, all of the same pairs.
struct DpoTerm {
  DpoLossType type = DpoLossType::kSigmoid;
  double weight = 1;
};

struct DpoOptions {
  double beta = 0.1;
  std::vector<DpoTerm> terms = {{}};
  // Of sigmoid (Mitchell 2023), robust, exo_pair (there above 0) and aot: the share of pairs that
  // may be labelled the wrong way round.
  double label_smoothing = 0;
  FDivergence f_divergence = FDivergence::kReverseKl;
  double f_alpha_divergence_coef = 0.5;
  double discopop_tau = 0.05;
  // LD-DPO (Liu et al. 2024): the weight of an answer's tokens from the other's length on. Null: 1.
  std::optional<double> ld_alpha;
  double preference_loss_weight = 1;  // of all terms but sft
  double sft_loss_weight = 0;         // beside the weights of sft terms
  // WPO (Zhou et al. 2024): each pair's preference losses times how likely the policy is to have
  // written both answers, as the geometric means over their tokens of p / sum(p^2), constants.
  bool use_weighting = false;

  bool has(DpoLossType type) const;
  // A term compares an answer with other pairs' answers, so that DpoInputs::partners are needed.
  bool sorted() const;
  // Of the negative log-likelihood.
  double sft_weight() const;
};

// Of the whole mini-batch over all ranks.
struct DpoDenominators {
  int64_t pairs = 0;
  int64_t chosen_tokens = 0;
};

// What the sorted losses compare each pair with, from all pairs of the mini-batch; fp64 [P].
struct DpoPartners {
  at::Tensor of_margin;    // aot: the reference's margin of the same rank
  at::Tensor of_chosen;    // aot_unpaired: the rejected answers' log-ratio of the same rank
  at::Tensor of_rejected;  // and the preferred answers'
};

// Sequences 2p and 2p + 1 are the preferred and the rejected answer of pair p, prompts included and
// masked; a last sequence without tokens that count is padding. All [T] fp32.
struct DpoInputs {
  TokenLayout layout;
  at::Tensor log_probs;  // carries the gradient
  at::Tensor ref_log_probs;
  DpoPartners partners;        // where DpoOptions::sorted; each undefined where no term needs it
  at::Tensor log_sum_squares;  // with use_weighting: log of the policy's sum(p^2) at each token
};

struct DpoSums {
  double preference_loss = 0;  // shares that are final as they are; of the terms by their weights
  double sft_loss = 0;
  double chosen_rewards = 0;  // sums over pairs: beta * (policy - reference)
  double rejected_rewards = 0;
  double accurate = 0;  // pairs whose preferred answer has the higher reward
  double pairs = 0;

  // The members above, in their order.
  using Totals = LossTotals<6>;
  static DpoSums Of(const std::array<double, 6>& values);
  // train/{preference_loss,sft_loss}, rewards/{chosen,rejected,margins,accuracies}
  std::map<std::string, double> Metrics() const;
};

struct DpoResult {
  at::Tensor loss;  // fp32 scalar
  DpoSums::Totals totals;
  DpoSums sums() const { return DpoSums::Of(totals.Read()); }
};

// The log-probability of each answer, [P, 2] fp64 as the loss sums it up: what partners are made
// of. Those of padding are 0.
at::Tensor AnswerLogProbs(const TokenLayout& layout, const at::Tensor& log_probs,
                          const DpoOptions& options);

// Throws Error(kInternal) when a term's partners, or what weights are made of, are not given.
DpoResult DpoLoss(const DpoInputs& inputs, const DpoOptions& options,
                  const DpoDenominators& denominators);

}  // namespace keel::trainer::rl
