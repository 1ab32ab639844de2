#include "parallel/tensor/vocab_parallel_log_probs.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <vector>

#include "common/kernels/cpu_kernels.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/vocab_tensor_softmax.h"

namespace keel::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// [C, 4] over `columns` valid columns; see kernels::TokenStatistics.
at::Tensor LocalStatistics(const at::Tensor& logits, const at::Tensor& local_targets,
                           int64_t columns, float temperature, bool entropy) {
  if (!ByHostKernels(logits))
    return TensorTokenStatistics(logits, local_targets, columns, temperature, entropy);
  const int64_t rows = logits.size(0);
  at::Tensor statistics = at::zeros({rows, 4}, logits.options().dtype(at::kFloat));
  WithHostPointer(logits, [&](auto* data) {
    at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
      kernels::TokenStatistics(data + begin * logits.size(1), logits.size(1), end - begin, columns,
                               local_targets.const_data_ptr<int64_t>() + begin, temperature,
                               entropy, statistics.data_ptr<float>() + begin * 4);
    });
  });
  return statistics;
}

// logits becomes their gradient.
void ToGradient(at::Tensor& logits, const at::Tensor& local_targets, int64_t columns,
                float temperature, const TokenSoftmax& softmax, const at::Tensor& log_prob_gradient,
                const at::Tensor& entropy_gradient) {
  if (!ByHostKernels(logits)) {
    TensorTokenGradient(logits, local_targets, columns, temperature, softmax, log_prob_gradient,
                        entropy_gradient);
    return;
  }
  WithHostPointer(logits, [&](auto* data) {
    at::parallel_for(0, logits.size(0), kRowGrain, [&](int64_t begin, int64_t end) {
      kernels::TokenStatisticsGradient(data + begin * logits.size(1), logits.size(1), end - begin,
                                       columns, local_targets.const_data_ptr<int64_t>() + begin,
                                       temperature,
                                       {softmax.largest.const_data_ptr<float>() + begin,
                                        softmax.log_sum.const_data_ptr<float>() + begin},
                                       softmax.entropy.const_data_ptr<float>() + begin,
                                       log_prob_gradient.const_data_ptr<float>() + begin,
                                       entropy_gradient.const_data_ptr<float>() + begin);
    });
  });
}

struct LogProbsFunction : Function<LogProbsFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& hidden,
                               const VocabParallelHead* head, const at::Tensor& targets,
                               double temperature, bool with_entropy, bool with_gradient) {
    const int64_t tokens = hidden.size(0);
    const auto fp32 = hidden.options().dtype(at::kFloat);
    const at::Tensor counted = targets.ne(kIgnoreTarget);
    const int64_t columns = LocalPart(*head).columns;
    at::Tensor log_probs = at::zeros({tokens}, fp32);
    at::Tensor entropy = at::zeros({tokens}, fp32);
    at::Tensor largest = at::empty({tokens}, fp32);
    at::Tensor log_sum = at::empty({tokens}, fp32);
    at::Tensor buffer = ChunkBuffer(*head, hidden);
    ForEachChunk(
        *head, hidden, targets, buffer,
        [&](int64_t begin, int64_t count, at::Tensor& logits, const at::Tensor& local_targets) {
          const TokenSoftmax joined = JoinTokenStatistics(
              GatherStatistics(LocalStatistics(logits, local_targets, columns,
                                               static_cast<float>(temperature), with_entropy),
                               *head->tp.group),
              temperature);
          const at::Tensor here = counted.narrow(0, begin, count);
          log_probs.narrow(0, begin, count).copy_(joined.LogProb(temperature) * here);
          largest.narrow(0, begin, count).copy_(joined.largest);
          log_sum.narrow(0, begin, count).copy_(joined.log_sum);
          if (with_entropy) entropy.narrow(0, begin, count).copy_(joined.entropy * here);
        });
    if (with_gradient) {
      const bool one_chunk = buffer.size(0) >= tokens;
      context->save_for_backward({hidden, targets, largest, log_sum, entropy.clone()});
      Capture(context, "head", head);
      Capture(context, "temperature", temperature);
      Capture(context, "logits", one_chunk ? buffer : at::Tensor());
    }
    return {log_probs, entropy};
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& hidden = saved[0];
    const at::Tensor& targets = saved[1];
    const VocabParallelHead& head = *Captured<const VocabParallelHead*>(context, "head");
    const auto temperature = static_cast<float>(Captured<double>(context, "temperature"));
    const int64_t columns = LocalPart(head).columns;
    const at::Tensor counted = targets.ne(kIgnoreTarget);
    const auto of_counted = [&](const at::Tensor& gradient) {
      return gradient.defined()
                 ? at::where(counted, gradient, at::zeros({}, gradient.options())).contiguous()
                 : at::zeros({targets.size(0)}, saved[2].options());
    };
    const at::Tensor log_prob_gradient = of_counted(gradients[0]);
    const at::Tensor entropy_gradient = of_counted(gradients[1]);
    at::Tensor dhidden = at::empty_like(hidden);
    const auto differentiate = [&](int64_t begin, int64_t count, at::Tensor& logits,
                                   const at::Tensor& local_targets) {
      TokenSoftmax softmax;
      softmax.largest = saved[2].narrow(0, begin, count);
      softmax.log_sum = saved[3].narrow(0, begin, count);
      softmax.entropy = saved[4].narrow(0, begin, count);
      const at::Tensor slope = CapSlope(head, logits);
      ToGradient(logits, local_targets, columns, temperature, softmax,
                 log_prob_gradient.narrow(0, begin, count),
                 entropy_gradient.narrow(0, begin, count));
      ToProductGradient(head, slope, logits);
      at::Tensor out = dhidden.narrow(0, begin, count);
      ProductInto(out, logits, head.weight->value);
      AddHeadGradient(head, logits, hidden.narrow(0, begin, count));
    };
    at::Tensor& kept = Captured<at::Tensor>(context, "logits");
    if (kept.defined()) {
      // Overwritten with the gradient: a second backward would make the logits again.
      at::Tensor logits = std::move(kept);
      kept = at::Tensor();
      if (hidden.size(0) > 0)
        differentiate(0, hidden.size(0), logits, targets - LocalPart(head).first);
    } else {
      at::Tensor buffer = ChunkBuffer(head, hidden);
      ForEachChunk(head, hidden, targets, buffer, differentiate);
    }
    return {dhidden, {}, {}, {}, {}, {}};
  }
};

}  // namespace

TokenLogProbs VocabParallelLogProbs(const VocabParallelHead& head, const at::Tensor& hidden,
                                    const at::Tensor& targets, double temperature,
                                    bool with_entropy) {
  TORCH_CHECK(temperature > 0, "log-probabilities: temperature ", temperature, " is not above 0");
  const variable_list out =
      LogProbsFunction::apply(EnterHead(head, hidden), &head, targets, temperature, with_entropy,
                              at::GradMode::is_enabled());
  return {out[0], with_entropy ? out[1] : at::Tensor()};
}

at::Tensor LogProbsOfWhole(const at::Tensor& logits, const at::Tensor& targets, double temperature,
                           int64_t part) {
  const at::NoGradGuard no_grad;
  std::vector<at::Tensor> of_parts;
  for (int64_t first = 0; first < logits.size(1); first += part) {
    const int64_t columns = std::min(part, logits.size(1) - first);
    of_parts.push_back(LocalStatistics(logits.narrow(1, first, columns).contiguous(),
                                       targets - first, columns, static_cast<float>(temperature),
                                       /*entropy=*/false));
  }
  return JoinTokenStatistics(at::stack(of_parts), temperature).LogProb(temperature);
}

at::Tensor VocabParallelLogSumSquares(const VocabParallelHead& head, const at::Tensor& hidden,
                                      const at::Tensor& targets, double temperature) {
  TORCH_CHECK(temperature > 0, "squared probabilities: temperature ", temperature,
              " is not above 0");
  const at::NoGradGuard no_grad;
  const at::Tensor entered = EnterHead(head, hidden);
  const int64_t columns = LocalPart(head).columns;
  const at::Tensor counted = targets.ne(kIgnoreTarget);
  at::Tensor sums = at::zeros({entered.size(0)}, entered.options().dtype(at::kFloat));
  at::Tensor buffer = ChunkBuffer(head, entered);
  ForEachChunk(
      head, entered, targets, buffer,
      [&](int64_t begin, int64_t count, at::Tensor& logits, const at::Tensor& local_targets) {
        // exp(y)^2 is exp(y) at half the temperature, with the same largest logit taken off.
        const auto log_sum = [&](double at) {
          return JoinTokenStatistics(
                     GatherStatistics(LocalStatistics(logits, local_targets, columns,
                                                      static_cast<float>(at), /*entropy=*/false),
                                      *head.tp.group),
                     at)
              .log_sum;
        };
        sums.narrow(0, begin, count)
            .copy_((log_sum(temperature / 2) - 2 * log_sum(temperature)) *
                   counted.narrow(0, begin, count));
      });
  return sums;
}

}  // namespace keel::parallel
