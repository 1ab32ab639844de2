// Direct preference optimization on pairs of answers: sigmoid (Rafailov et al. 2023, label
// smoothing of Mitchell 2023), IPO (Azar et al. 2023, per token as its authors advise), and a
// supervised term on the preferred answers. Numbers as TRL's. Pure; called from the training
// thread.
#pragma once

#include <ATen/ATen.h>

#include <map>
#include <string>

#include "trainer/algorithms/choices.h"
#include "trainer/algorithms/loss_aggregation.h"

namespace keel::trainer::rl {

struct DpoOptions {
  double beta = 0.1;
  DpoLossType type = DpoLossType::kSigmoid;
  double label_smoothing = 0;
  double preference_loss_weight = 1;
  double sft_loss_weight = 0;
};

// Of the whole mini-batch over all ranks.
struct DpoDenominators {
  int64_t pairs = 0;
  int64_t chosen_tokens = 0;
};

// Sequences 2p and 2p + 1 are the preferred and the rejected answer of pair p, prompts included and
// masked; a last sequence without tokens that count is padding. All [T] fp32.
struct DpoInputs {
  TokenLayout layout;
  at::Tensor log_probs;  // carries the gradient
  at::Tensor ref_log_probs;
};

struct DpoSums {
  double preference_loss = 0;  // shares that are final as they are
  double sft_loss = 0;
  double chosen_rewards = 0;  // sums over pairs: beta * (policy - reference)
  double rejected_rewards = 0;
  double accurate = 0;  // pairs whose preferred answer has the higher reward
  double pairs = 0;

  DpoSums& operator+=(const DpoSums& other);
  // train/{preference_loss,sft_loss}, rewards/{chosen,rejected,margins,accuracies}
  std::map<std::string, double> Metrics() const;
};

struct DpoResult {
  at::Tensor loss;  // fp32 scalar
  DpoSums sums;
};

DpoResult DpoLoss(const DpoInputs& inputs, const DpoOptions& options,
                  const DpoDenominators& denominators);

}  // namespace keel::trainer::rl
