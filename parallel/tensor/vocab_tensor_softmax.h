// Statistics and gradients of softmax(logits / temperature) over a rank's part of the vocabulary by
// Keel's kernels for GPUs (gpu/), or by tensor operations where a build has none: what
// kernels::TokenStatistics and kernels::TokenStatisticsGradient (common/kernels/cpu_kernels.h) are
// on a CPU. Device-independent, so that a CPU can test them.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>

namespace keel::parallel {

// [C, 3] fp32 over the first `columns` of logits [C, rows]: the maximum, the sum of exp(y) for
// y = (x - maximum) / temperature, and the target's logit (0 when it is elsewhere); with `entropy`
// [C, 4], the sum of exp(y) * y beside them. local_targets [C] int64.
at::Tensor TensorTokenStatistics(const at::Tensor& logits, const at::Tensor& local_targets,
                                 int64_t columns, float temperature, bool entropy);

// Over the whole vocabulary, [C] fp32 each.
struct TokenSoftmax {
  at::Tensor largest;  // logit
  at::Tensor log_sum;  // log of the sum of exp((x - largest) / temperature)
  at::Tensor target;   // its logit
  at::Tensor entropy;  // undefined where the statistics are without

  // (target - largest) / temperature - log_sum: differences first, or large logits' rounding would
  // be the error of a log-probability near 0.
  at::Tensor LogProb(double temperature) const {
    return (target - largest).div_(temperature).sub_(log_sum);
  }
};
// Takes statistics [ranks, C, 3 or 4] and joins them in rank order, so that every rank gets the
// same bits.
TokenSoftmax JoinTokenStatistics(const at::Tensor& all, double temperature);

// logits becomes the gradient of sum(log_prob_gradient * log p(target) + entropy_gradient *
// entropy); columns from `columns` on become 0. An undefined entropy_gradient is 0.
void TensorTokenGradient(at::Tensor& logits, const at::Tensor& local_targets, int64_t columns,
                         float temperature, const TokenSoftmax& softmax,
                         const at::Tensor& log_prob_gradient, const at::Tensor& entropy_gradient);

}  // namespace keel::parallel
