// Which tokens of a mini-batch Clip-Cov and KL-Cov treat apart: those where advantage and
// log-probability move together, which is what takes a policy's entropy away (Cui et al. 2025,
// arXiv 2505.22617; verl's compute_policy_loss_clip_cov and compute_policy_loss_kl_cov).
//
// Made once for the whole mini-batch, on the host, in fp64, from the current policy's
// log-probabilities: no micro-batch, rank or packing changes what is chosen. (verl chooses within a
// micro-batch of a rank; with one of each the two are the same, but for Clip-Cov's draw, which is
// by Philox here.) Pure, thread-safe, torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <vector>

#include "trainer/algorithms/choices.h"

namespace keel::trainer::rl {

struct CovarianceOptions {
  double clip_cov_ratio = 0.0002;  // share of the tokens
  double clip_cov_lb = 1.0;        // covariances between the two may be drawn
  double clip_cov_ub = 5.0;
  double kl_cov_ratio = 0.0002;  // share of the tokens
};

// Of the step's tokens [N].
struct CovarianceInputs {
  std::span<const float> log_probs;  // of the current policy
  std::span<const float> old_log_probs;
  std::span<const float> advantages;
  std::span<const uint8_t> mask;
  std::span<const int64_t> tokens;  // those of the mini-batch, rising
};

// The draw of a mini-batch: token t has the random number of counter base + t.
struct CovarianceDraw {
  uint64_t seed = 0;
  int64_t step = 0;
  int64_t epoch = 0;
};

// [N], 1 at the chosen tokens.
//
// kClipCov: of the policy's tokens whose ratio is not clipped (outside of [1 - low, 1 + high] on
// the side that the advantage pushes to) and whose covariance is between the bounds, as many as
// clip_cov_ratio of all tokens, at least one, at random.
// kKlCov: of the policy's tokens kl_cov_ratio, at least one, those with the largest covariance; of
// equal ones those that come first.
std::vector<uint8_t> ChooseByCovariance(PolicyLossMode mode, const CovarianceInputs& inputs,
                                        double clip_ratio_low, double clip_ratio_high,
                                        const CovarianceOptions& options,
                                        const CovarianceDraw& draw);

}  // namespace keel::trainer::rl
