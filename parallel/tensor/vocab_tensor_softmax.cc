#include "parallel/tensor/vocab_tensor_softmax.h"

#include <limits>

namespace keel::parallel {

namespace {

// exp of it is 0 in fp32, and a product with 0 is not NaN as with -inf.
constexpr double kFarBelow = -1e4;

struct TargetIndex {
  at::Tensor here;   // [C] bool: the target is among the columns
  at::Tensor index;  // [C, 1]: where, or 0
};

TargetIndex IndexOf(const at::Tensor& local_targets, int64_t columns) {
  const at::Tensor here = local_targets.ge(0).logical_and_(local_targets.lt(columns));
  return {here, local_targets.masked_fill(here.logical_not(), 0).unsqueeze(1)};
}

}  // namespace

at::Tensor TensorTokenStatistics(const at::Tensor& logits, const at::Tensor& local_targets,
                                 int64_t columns, float temperature, bool entropy) {
  at::Tensor statistics =
      at::zeros({logits.size(0), entropy ? 4 : 3}, logits.options().dtype(at::kFloat));
  if (columns == 0) {
    statistics.select(1, 0).fill_(-std::numeric_limits<float>::infinity());
    return statistics;
  }
  const at::Tensor valid = logits.narrow(1, 0, columns).to(at::kFloat);
  const at::Tensor largest = std::get<0>(valid.max(1));
  const auto [here, index] = IndexOf(local_targets, columns);
  const at::Tensor below = (valid - largest.unsqueeze(1)).div_(temperature);
  const at::Tensor exponentials = below.exp();
  statistics.select(1, 0).copy_(largest);
  statistics.select(1, 1).copy_(exponentials.sum(1));
  statistics.select(1, 2).copy_(valid.gather(1, index).squeeze(1) * here);
  if (entropy) statistics.select(1, 3).copy_((exponentials * below).sum(1));
  return statistics;
}

TokenSoftmax JoinTokenStatistics(const at::Tensor& all, double temperature) {
  const at::Tensor maxima = all.select(2, 0);
  TokenSoftmax out;
  out.largest = std::get<0>(maxima.max(0));
  const at::Tensor below = (maxima - out.largest).div_(temperature).clamp_min_(kFarBelow);
  const at::Tensor scale = below.exp();
  const at::Tensor sum = (all.select(2, 1) * scale).sum(0);
  out.log_sum = sum.log();
  out.target = all.select(2, 2).sum(0);
  if (all.size(2) == 4) {
    const at::Tensor weighted = ((all.select(2, 3) + all.select(2, 1) * below) * scale).sum(0);
    out.entropy = out.log_sum - weighted / sum;
  }
  return out;
}

void TensorTokenGradient(at::Tensor& logits, const at::Tensor& local_targets, int64_t columns,
                         float temperature, const TokenSoftmax& softmax,
                         const at::Tensor& log_prob_gradient, const at::Tensor& entropy_gradient) {
  if (columns == 0) {
    logits.zero_();
    return;
  }
  const at::Tensor log_p =
      (logits.narrow(1, 0, columns).to(at::kFloat) - softmax.largest.unsqueeze(1))
          .div_(temperature)
          .sub_(softmax.log_sum.unsqueeze(1));
  const at::Tensor p = log_p.exp();
  // d log p(t) = [i == t] - p_i; d entropy = -p_i (log p_i + entropy).
  const auto [here, index] = IndexOf(local_targets, columns);
  at::Tensor gradient = p.neg();
  gradient.scatter_add_(1, index, here.to(at::kFloat).unsqueeze(1));
  gradient.mul_((log_prob_gradient / temperature).unsqueeze(1));
  if (entropy_gradient.defined()) {
    gradient.addcmul_(p * (entropy_gradient / temperature).unsqueeze(1),
                      log_p + softmax.entropy.unsqueeze(1), -1);
  }
  logits.zero_();
  logits.narrow(1, 0, columns).copy_(gradient);
}

}  // namespace keel::parallel
