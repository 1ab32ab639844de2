#include "parallel/tensor/vocab_chunks.h"

#include "parallel/tensor/regions.h"
#include "parallel/tensor/row_product.h"
#include "parallel/tensor/scale.h"

namespace keel::parallel {

VocabPart LocalPart(const VocabParallelHead& head) {
  const int64_t rows = head.weight->rows();
  const int64_t first = head.tp.group->rank() * rows;
  return {first, std::clamp<int64_t>(head.vocab_size - first, 0, rows)};
}

void MultiplyByHead(const VocabParallelHead& head, const at::Tensor& hidden, at::Tensor& logits) {
  if (head.tp.arithmetic == Arithmetic::kBatchInvariant) {
    LinearInto(hidden.contiguous(), *head.weight, head.bias, logits, head.tp.arithmetic);
    return;
  }
  ProductInto(logits, hidden, head.weight->value.t());
  if (head.bias != nullptr) logits.add_(head.bias->value);
}

void FinishLogits(const VocabParallelHead& head, at::Tensor& products) {
  if (head.divisor != 1) products.div_(head.divisor);
  if (head.softcap == 0) return;
  products.div_(head.softcap).tanh_();
  ScaleInPlace(products, head.softcap);
}

at::Tensor CapSlope(const VocabParallelHead& head, const at::Tensor& logits) {
  if (head.softcap == 0) return {};
  return (logits / head.softcap).square_().neg_().add_(1);
}

void ToProductGradient(const VocabParallelHead& head, const at::Tensor& slope,
                       at::Tensor& gradient) {
  if (slope.defined()) gradient.mul_(slope);
  if (head.divisor != 1) gradient.div_(head.divisor);
}

void AddHeadGradient(const VocabParallelHead& head, const at::Tensor& gradient,
                     const at::Tensor& hidden) {
  if (head.weight->trained()) AccumulateWeightGradient(head.weight->gradient, gradient, hidden);
  if (head.bias == nullptr || !head.bias->trained()) return;
  const int64_t columns = LocalPart(head).columns;
  head.bias->gradient.narrow(0, 0, columns)
      .add_(at::sum(gradient.narrow(1, 0, columns), {0}, false, at::kFloat));
}

int64_t DefaultChunkBytes(const at::Device& device) {
  return int64_t{device.is_cpu() ? 64 : 1024} << 20;
}

int64_t ChunkRows(const VocabParallelHead& head, const at::Tensor& hidden) {
  const int64_t tokens = hidden.size(0);
  const int64_t row_bytes = head.weight->rows() * hidden.element_size();
  const int64_t bytes =
      head.chunk_bytes > 0 ? head.chunk_bytes : DefaultChunkBytes(hidden.device());
  const int64_t room =
      std::max<int64_t>(1, std::min(tokens, bytes / std::max<int64_t>(1, row_bytes)));
  const int64_t pieces = std::max<int64_t>(1, (tokens + room - 1) / room);
  return std::max<int64_t>(1, (tokens + pieces - 1) / pieces);
}

at::Tensor ChunkBuffer(const VocabParallelHead& head, const at::Tensor& hidden) {
  return at::empty({ChunkRows(head, hidden), head.weight->rows()}, hidden.options());
}

at::Tensor EnterHead(const VocabParallelHead& head, const at::Tensor& hidden) {
  return head.tp.sequence_parallel ? GatherFromSequenceParallel(hidden, *head.tp.group)
                                   : CopyToTensorParallel(hidden, *head.tp.group);
}

at::Tensor GatherStatistics(const at::Tensor& statistics, ProcessGroup& group) {
  if (group.size() == 1) return statistics.unsqueeze(0);
  at::Tensor all =
      at::empty({group.size(), statistics.size(0), statistics.size(1)}, statistics.options());
  group.AllGather(all, statistics);
  return all;
}

}  // namespace keel::parallel
