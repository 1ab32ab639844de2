#include "parallel/vocab_parallel_loss.h"

#include <ATen/Parallel.h>

#include <algorithm>
#include <limits>

#include "common/cpu_kernels.h"
#include "parallel/autograd_capture.h"
#include "parallel/matrix_product.h"
#include "parallel/regions.h"

namespace keel::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// [C, 3]: maximum, sum of exponentials, logit of the target; over `columns` valid columns.
at::Tensor LocalStatistics(const at::Tensor& logits, const at::Tensor& local_targets,
                           int64_t columns) {
  const int64_t rows = logits.size(0);
  at::Tensor statistics = at::empty({rows, 3}, logits.options().dtype(at::kFloat));
  if (logits.is_cpu()) {
    WithHostPointer(logits, [&](auto* data) {
      at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
        kernels::SoftmaxStatistics(data + begin * logits.size(1), logits.size(1), end - begin,
                                   columns, local_targets.data_ptr<int64_t>() + begin,
                                   statistics.data_ptr<float>() + begin * 3);
      });
    });
    return statistics;
  }
  const at::Tensor valid = logits.narrow(1, 0, columns).to(at::kFloat);
  const at::Tensor largest =
      columns > 0 ? std::get<0>(valid.max(1))
                  : at::full({rows}, -std::numeric_limits<float>::infinity(), valid.options());
  const at::Tensor here = local_targets.ge(0).logical_and_(local_targets.lt(columns));
  const at::Tensor index = local_targets.masked_fill(here.logical_not(), 0).unsqueeze(1);
  statistics.select(1, 0).copy_(largest);
  statistics.select(1, 1).copy_((valid - largest.unsqueeze(1)).exp_().sum(1));
  statistics.select(1, 2).copy_(columns > 0 ? valid.gather(1, index).squeeze(1) * here
                                            : at::zeros({rows}, valid.options()));
  return statistics;
}

// logits becomes the gradient of sum_t weight_t * nll_t.
void LogitsToGradient(at::Tensor& logits, const at::Tensor& local_targets, int64_t columns,
                      const at::Tensor& log_sum, const at::Tensor& weight) {
  const int64_t rows = logits.size(0);
  if (logits.is_cpu()) {
    WithHostPointer(logits, [&](auto* data) {
      at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
        kernels::SoftmaxGradient(data + begin * logits.size(1), logits.size(1), end - begin,
                                 columns, local_targets.data_ptr<int64_t>() + begin,
                                 log_sum.data_ptr<float>() + begin,
                                 weight.data_ptr<float>() + begin);
      });
    });
    return;
  }
  at::Tensor p = (logits.narrow(1, 0, columns).to(at::kFloat) - log_sum.unsqueeze(1)).exp_();
  const at::Tensor here = local_targets.ge(0).logical_and_(local_targets.lt(columns));
  if (columns > 0) {
    p.scatter_add_(1, local_targets.masked_fill(here.logical_not(), 0).unsqueeze(1),
                   here.to(at::kFloat).neg_().unsqueeze(1));
  }
  p.mul_(weight.unsqueeze(1));
  logits.zero_();
  logits.narrow(1, 0, columns).copy_(p);
}

struct ChunkResult {
  at::Tensor log_sum;  // [C] log of the sum of exponentials over the whole vocabulary
  at::Tensor target;   // [C] logit of the target
};

// Joins the statistics of all ranks, in rank order, so that every rank gets the same bits.
ChunkResult JoinRanks(const at::Tensor& statistics, ProcessGroup& group) {
  const at::Tensor all = GatherStatistics(statistics, group);
  const at::Tensor maxima = all.select(2, 0);
  const at::Tensor largest = std::get<0>(maxima.max(0));
  const at::Tensor sum = (all.select(2, 1) * (maxima - largest).exp_()).sum(0);
  return {largest + sum.log_(), all.select(2, 2).sum(0)};
}

struct LossFunction : Function<LossFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& hidden,
                            const VocabParallelHead* head, const at::Tensor& targets, double scale,
                            bool with_gradient) {
    const at::Tensor counted = targets.ne(kIgnoreTarget).to(at::kFloat);  // [T]
    const int64_t columns = LocalPart(*head).columns;
    at::Tensor loss = at::zeros({}, hidden.options().dtype(at::kFloat));
    at::Tensor dhidden = with_gradient ? at::empty_like(hidden) : at::Tensor();
    at::Tensor buffer = ChunkBuffer(*head, hidden);
    ForEachChunk(
        *head, hidden, targets, buffer,
        [&](int64_t begin, int64_t count, at::Tensor& logits, const at::Tensor& local_targets) {
          const ChunkResult result =
              JoinRanks(LocalStatistics(logits, local_targets, columns), *head->tp.group);
          const at::Tensor weight = counted.narrow(0, begin, count);
          loss.add_(((result.log_sum - result.target) * weight).sum(), scale);
          if (!with_gradient) return;
          LogitsToGradient(logits, local_targets, columns, result.log_sum, weight * scale);
          at::Tensor out = dhidden.narrow(0, begin, count);
          ProductInto(out, logits, head->weight->value);
          AccumulateWeightGradient(head->weight->gradient, logits, hidden.narrow(0, begin, count));
        });
    if (with_gradient) context->save_for_backward({dhidden});
    return loss;
  }

  static variable_list backward(AutogradContext* context, variable_list) {
    return {context->get_saved_variables()[0], {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor VocabParallelLoss(const VocabParallelHead& head, const at::Tensor& hidden,
                             const at::Tensor& targets, double scale) {
  return LossFunction::apply(EnterHead(head, hidden), &head, targets, scale,
                             at::GradMode::is_enabled());
}

at::Tensor GatheredLogits(const VocabParallelHead& head, const at::Tensor& hidden) {
  const at::NoGradGuard no_grad;
  const at::Tensor local = Product(EnterHead(head, hidden), head.weight->value.t());
  return GatherFromTensorParallel(local, *head.tp.group).narrow(1, 0, head.vocab_size);
}

}  // namespace keel::parallel
