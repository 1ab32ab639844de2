#include "parallel/tensor/vocab_parallel_loss.h"

#include <ATen/Parallel.h>

#include "common/kernels/cpu_kernels.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/matrix_product.h"
#include "parallel/tensor/regions.h"
#include "parallel/tensor/vocab_tensor_softmax.h"

namespace keel::parallel {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// [C, 3]: maximum, sum of exponentials, logit of the target; over `columns` valid columns.
at::Tensor LocalStatistics(const at::Tensor& logits, const at::Tensor& local_targets,
                           int64_t columns) {
  if (!ByHostKernels(logits))
    return TensorTokenStatistics(logits, local_targets, columns, 1, false);
  const int64_t rows = logits.size(0);
  at::Tensor statistics = at::empty({rows, 3}, logits.options().dtype(at::kFloat));
  WithHostPointer(logits, [&](auto* data) {
    at::parallel_for(0, rows, kRowGrain, [&](int64_t begin, int64_t end) {
      kernels::SoftmaxStatistics(data + begin * logits.size(1), logits.size(1), end - begin,
                                 columns, local_targets.const_data_ptr<int64_t>() + begin,
                                 statistics.data_ptr<float>() + begin * 3);
    });
  });
  return statistics;
}

// logits becomes the gradient of sum_t weight_t * nll_t.
void LogitsToGradient(at::Tensor& logits, const at::Tensor& local_targets, int64_t columns,
                      const TokenSoftmax& softmax, const at::Tensor& weight) {
  if (!ByHostKernels(logits)) {
    TensorTokenGradient(logits, local_targets, columns, 1, softmax, weight.neg(), {});
    return;
  }
  WithHostPointer(logits, [&](auto* data) {
    at::parallel_for(0, logits.size(0), kRowGrain, [&](int64_t begin, int64_t end) {
      kernels::SoftmaxGradient(data + begin * logits.size(1), logits.size(1), end - begin, columns,
                               local_targets.const_data_ptr<int64_t>() + begin,
                               {softmax.largest.const_data_ptr<float>() + begin,
                                softmax.log_sum.const_data_ptr<float>() + begin},
                               weight.const_data_ptr<float>() + begin);
    });
  });
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
          const TokenSoftmax softmax = JoinTokenStatistics(
              GatherStatistics(LocalStatistics(logits, local_targets, columns), *head->tp.group),
              1);
          const at::Tensor weight = counted.narrow(0, begin, count);
          loss.sub_((softmax.LogProb(1) * weight).sum(), scale);
          if (!with_gradient) return;
          const at::Tensor slope = CapSlope(*head, logits);
          LogitsToGradient(logits, local_targets, columns, softmax, weight * scale);
          ToProductGradient(*head, slope, logits);
          at::Tensor out = dhidden.narrow(0, begin, count);
          ProductInto(out, logits, head->weight->value);
          AddHeadGradient(*head, logits, hidden.narrow(0, begin, count));
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
  const at::Tensor entered = EnterHead(head, hidden);
  at::Tensor local = at::empty({entered.size(0), head.weight->rows()}, entered.options());
  MultiplyByHead(head, entered, local);
  FinishLogits(head, local);
  return GatherFromTensorParallel(local, *head.tp.group).narrow(1, 0, head.vocab_size);
}

}  // namespace keel::parallel
