// PyTorch's FlashAttention over packed sequences, by its definition, on a pretend GPU: in fp32, a
// head of a sequence at a time.

#include <ATen/ATen.h>
#include <ATen/record_function.h>
#include <torch/library.h>

#include <functional>

#include "tests/support/pretend_gpu/recording.h"
#include "tests/support/pretend_gpu/tensors.h"

namespace keel::testing::pretend {

namespace {

// What belongs together: a sequence's queries, keys and values of one head, and where they stand.
struct Head {
  int64_t begin, length;
  int64_t query_head, kv_head;
  at::Tensor Of(const at::Tensor& packed, int64_t head) const {
    return packed.narrow(0, begin, length).select(1, head);
  }
};

void ForEachHead(const at::Tensor& query, const at::Tensor& key, const at::Tensor& boundaries,
                 const std::function<void(const Head&)>& run) {
  const int64_t times = query.size(1) / key.size(1);
  for (int64_t s = 0; s + 1 < boundaries.size(0); ++s) {
    const auto begin = boundaries[s].item<int64_t>();
    const int64_t length = boundaries[s + 1].item<int64_t>() - begin;
    if (length == 0) continue;
    for (int64_t h = 0; h < query.size(1); ++h) run({begin, length, h, h / times});
  }
}

double ScaleOf(std::optional<double> scale, const at::Tensor& query) {
  return scale.value_or(1 / std::sqrt(static_cast<double>(query.size(-1))));
}

// [length, length], -inf where a query does not see a key.
at::Tensor Scores(const at::Tensor& q, const at::Tensor& k, double scale, bool causal) {
  at::Tensor scores = at::mm(q, k.t()) * scale;
  if (!causal) return scores;
  const at::Tensor unseen = at::ones(scores.sizes(), at::kBool).triu(1);
  return scores.masked_fill(unseen, -std::numeric_limits<double>::infinity());
}

using Five = std::tuple<at::Tensor, at::Tensor, at::Tensor, at::Tensor, at::Tensor>;
using Three = std::tuple<at::Tensor, at::Tensor, at::Tensor>;

Five Forward(const at::Tensor& query, const at::Tensor& key, const at::Tensor& value,
             const std::optional<at::Tensor>& boundaries, const std::optional<at::Tensor>&,
             c10::SymInt, c10::SymInt, double, bool causal, bool, std::optional<double> scale,
             std::optional<c10::SymInt>, std::optional<c10::SymInt>,
             const std::optional<at::Tensor>&, const std::optional<at::Tensor>&) {
  const at::RecordFunctionGuard one_operation(false);
  NotWhileRecording("FlashAttention");
  TORCH_CHECK(query.size(2) % 8 == 0 && query.size(2) <= 256,
              "pretend GPU: FlashAttention has no heads of ", query.size(2));
  const at::Tensor q = HostViewOf(query).to(at::kFloat), k = HostViewOf(key).to(at::kFloat),
                   v = HostViewOf(value).to(at::kFloat);
  at::Tensor out = at::empty_like(q, at::MemoryFormat::Contiguous);
  at::Tensor log_sums = at::empty({q.size(1), q.size(0)}, at::kFloat);
  ForEachHead(q, k, HostViewOf(*boundaries), [&](const Head& h) {
    const at::Tensor scores =
        Scores(h.Of(q, h.query_head), h.Of(k, h.kv_head), ScaleOf(scale, q), causal);
    const at::Tensor log_sum = scores.logsumexp(1);
    h.Of(out, h.query_head)
        .copy_(at::mm((scores - log_sum.unsqueeze(1)).exp(), h.Of(v, h.kv_head)));
    log_sums.select(0, h.query_head).narrow(0, h.begin, h.length).copy_(log_sum);
  });
  const at::Device device = query.device();
  const at::Tensor none = ToDevice(at::zeros({2}, at::kLong), device);
  return {ToDevice(out.to(query.scalar_type()), device), ToDevice(log_sums, device), none, none,
          none};
}

Three Backward(const at::Tensor& gradient, const at::Tensor& query, const at::Tensor& key,
               const at::Tensor& value, const at::Tensor& output, const at::Tensor& log_sums,
               const at::Tensor& boundaries, const at::Tensor&, c10::SymInt, c10::SymInt, double,
               bool causal, const at::Tensor&, const at::Tensor&, std::optional<double> scale,
               std::optional<c10::SymInt>, std::optional<c10::SymInt>) {
  const at::RecordFunctionGuard one_operation(false);
  const at::Tensor q = HostViewOf(query).to(at::kFloat), k = HostViewOf(key).to(at::kFloat),
                   v = HostViewOf(value).to(at::kFloat), o = HostViewOf(output).to(at::kFloat),
                   g = HostViewOf(gradient).to(at::kFloat), sums = HostViewOf(log_sums);
  const at::Tensor dq = at::zeros_like(q, at::MemoryFormat::Contiguous);
  const at::Tensor dk = at::zeros_like(k, at::MemoryFormat::Contiguous);
  const at::Tensor dv = at::zeros_like(v, at::MemoryFormat::Contiguous);
  const double factor = ScaleOf(scale, q);
  ForEachHead(q, k, HostViewOf(boundaries), [&](const Head& h) {
    const at::Tensor scores = Scores(h.Of(q, h.query_head), h.Of(k, h.kv_head), factor, causal);
    const at::Tensor log_sum = sums.select(0, h.query_head).narrow(0, h.begin, h.length);
    const at::Tensor p = (scores - log_sum.unsqueeze(1)).exp();
    const at::Tensor of_out = h.Of(g, h.query_head);
    const at::Tensor dp = at::mm(of_out, h.Of(v, h.kv_head).t());
    const at::Tensor delta = (of_out * h.Of(o, h.query_head)).sum(1, true);
    const at::Tensor ds = p * (dp - delta) * factor;
    h.Of(dq, h.query_head).copy_(at::mm(ds, h.Of(k, h.kv_head)));
    h.Of(dk, h.kv_head).add_(at::mm(ds.t(), h.Of(q, h.query_head)));
    h.Of(dv, h.kv_head).add_(at::mm(p.t(), of_out));
  });
  const at::Device device = query.device();
  const auto there = [&](const at::Tensor& t) {
    return ToDevice(t.to(query.scalar_type()), device);
  };
  return {there(dq), there(dk), there(dv)};
}

}  // namespace

TORCH_LIBRARY_IMPL(aten, CUDA, m) {
  m.impl("_flash_attention_forward", Forward);
  m.impl("_flash_attention_backward", Backward);
}

}  // namespace keel::testing::pretend
