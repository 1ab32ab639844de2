#include "parallel/vocab_parallel_log_probs.h"

#include <ATen/Parallel.h>

#include <limits>

#include "common/cpu_kernels.h"
#include "parallel/autograd_capture.h"

namespace keel::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// exp of it is 0 in fp32, and a product with 0 is not NaN as with -inf.
constexpr double kFarBelow = -1e4;

// [C, 4] over `columns` valid columns; see kernels::TokenStatistics.
at::Tensor LocalStatistics(const at::Tensor& logits, const at::Tensor& local_targets,
                           int64_t columns, float temperature, bool entropy) {
  const int64_t rows = logits.size(0);
  at::Tensor statistics = at::zeros({rows, 4}, logits.options().dtype(at::kFloat));
  if (logits.is_cpu()) {
    WithHostPointer(logits, [&](auto* data) {
      at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
        kernels::TokenStatistics(data + begin * logits.size(1), logits.size(1), end - begin,
                                 columns, local_targets.const_data_ptr<int64_t>() + begin,
                                 temperature, entropy, statistics.data_ptr<float>() + begin * 4);
      });
    });
    return statistics;
  }
  if (columns == 0) {
    statistics.select(1, 0).fill_(-std::numeric_limits<float>::infinity());
    return statistics;
  }
  const at::Tensor scaled = logits.narrow(1, 0, columns).to(at::kFloat).div(temperature);
  const at::Tensor largest = std::get<0>(scaled.max(1));
  const at::Tensor here = local_targets.ge(0).logical_and_(local_targets.lt(columns));
  const at::Tensor index = local_targets.masked_fill(here.logical_not(), 0).unsqueeze(1);
  const at::Tensor below = scaled - largest.unsqueeze(1);
  const at::Tensor exponentials = below.exp();
  statistics.select(1, 0).copy_(largest);
  statistics.select(1, 1).copy_(exponentials.sum(1));
  statistics.select(1, 2).copy_(scaled.gather(1, index).squeeze(1) * here);
  if (entropy) statistics.select(1, 3).copy_((exponentials * below).sum(1));
  return statistics;
}

struct Joined {
  at::Tensor log_sum;  // [C]
  at::Tensor target;   // [C] logit of the target over the temperature
  at::Tensor entropy;  // [C]
};

Joined Join(const at::Tensor& statistics, ProcessGroup& group) {
  const at::Tensor all = GatherStatistics(statistics, group);
  const at::Tensor maxima = all.select(2, 0);
  const at::Tensor largest = std::get<0>(maxima.max(0));
  const at::Tensor below = (maxima - largest).clamp_min(kFarBelow);
  const at::Tensor scale = below.exp();
  const at::Tensor sum = (all.select(2, 1) * scale).sum(0);
  const at::Tensor weighted = ((all.select(2, 3) + all.select(2, 1) * below) * scale).sum(0);
  const at::Tensor log_sum = sum.log();
  return {largest + log_sum, all.select(2, 2).sum(0), log_sum - weighted / sum};
}

// logits becomes their gradient.
void ToGradient(at::Tensor& logits, const at::Tensor& local_targets, int64_t columns,
                float temperature, const at::Tensor& log_sum, const at::Tensor& entropy,
                const at::Tensor& log_prob_gradient, const at::Tensor& entropy_gradient) {
  const int64_t rows = logits.size(0);
  if (logits.is_cpu()) {
    WithHostPointer(logits, [&](auto* data) {
      at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
        kernels::TokenStatisticsGradient(data + begin * logits.size(1), logits.size(1), end - begin,
                                         columns, local_targets.const_data_ptr<int64_t>() + begin,
                                         temperature, log_sum.const_data_ptr<float>() + begin,
                                         entropy.const_data_ptr<float>() + begin,
                                         log_prob_gradient.const_data_ptr<float>() + begin,
                                         entropy_gradient.const_data_ptr<float>() + begin);
      });
    });
    return;
  }
  const at::Tensor log_p =
      logits.narrow(1, 0, columns).to(at::kFloat).div_(temperature).sub_(log_sum.unsqueeze(1));
  const at::Tensor a = (log_prob_gradient / temperature).unsqueeze(1);
  const at::Tensor b = (entropy_gradient / temperature).unsqueeze(1);
  at::Tensor gradient = -log_p.exp() * (a + b * (log_p + entropy.unsqueeze(1)));
  const at::Tensor here = local_targets.ge(0).logical_and_(local_targets.lt(columns));
  if (columns > 0) {
    gradient.scatter_add_(1, local_targets.masked_fill(here.logical_not(), 0).unsqueeze(1),
                          a * here.to(at::kFloat).unsqueeze(1));
  }
  logits.zero_();
  logits.narrow(1, 0, columns).copy_(gradient);
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
    at::Tensor log_sum = at::empty({tokens}, fp32);
    at::Tensor buffer = ChunkBuffer(*head, hidden);
    ForEachChunk(
        *head, hidden, targets, buffer,
        [&](int64_t begin, int64_t count, at::Tensor& logits, const at::Tensor& local_targets) {
          const Joined joined = Join(LocalStatistics(logits, local_targets, columns,
                                                     static_cast<float>(temperature), with_entropy),
                                     *head->tp.group);
          const at::Tensor here = counted.narrow(0, begin, count);
          log_probs.narrow(0, begin, count).copy_((joined.target - joined.log_sum) * here);
          log_sum.narrow(0, begin, count).copy_(joined.log_sum);
          if (with_entropy) entropy.narrow(0, begin, count).copy_(joined.entropy * here);
        });
    if (with_gradient) {
      const bool one_chunk = buffer.size(0) >= tokens;
      context->save_for_backward({hidden, targets, log_sum, entropy.clone()});
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
      ToGradient(logits, local_targets, columns, temperature, saved[2].narrow(0, begin, count),
                 saved[3].narrow(0, begin, count), log_prob_gradient.narrow(0, begin, count),
                 entropy_gradient.narrow(0, begin, count));
      at::Tensor out = dhidden.narrow(0, begin, count);
      ProductInto(out, logits, head.weight->value);
      AccumulateWeightGradient(head.weight->gradient, logits, hidden.narrow(0, begin, count));
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

}  // namespace keel::parallel
