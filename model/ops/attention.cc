// PackedAttention: causal attention within each sequence of a packed micro-batch.

#include <algorithm>
#include <optional>
#include <tuple>
#include <vector>

#include "model/ops/attention_runs.h"
#include "model/ops/attention_sinks.h"
#include "model/ops/exact_attention.h"
#include "model/ops/ops.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/matrix_product.h"
#include "parallel/tensor/send.h"

namespace keel::model {

namespace {

using parallel::Capture;
using parallel::Captured;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor RepeatHeads(const at::Tensor& x, int64_t times) {
  return times == 1 ? x : x.repeat_interleave(times, 1);
}

// Sums the gradients of repeated heads: [n, heads, L, d] -> [n, heads / times, L, d].
at::Tensor SumRepeats(const at::Tensor& x, int64_t times) {
  if (times == 1) return x;
  return x.view({x.size(0), x.size(1) / times, times, x.size(2), x.size(3)}).sum(2);
}

// Whatever is computed of x is computed in this.
at::Tensor Computed(const at::Tensor& x) {
  return x.scalar_type() == at::kBFloat16 && parallel::WidensBf16() ? x.to(at::kFloat) : x;
}

struct CpuAttention : Function<CpuAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const AttentionShape& shape, const std::vector<AttentionRun>& runs,
                            const std::optional<double>& scale, parallel::Parameter* sinks) {
    const int64_t d = shape.head_dim;
    at::Tensor out = at::empty({qkv.size(0), shape.heads * d}, qkv.options());
    variable_list saved = {qkv, out};
    const int64_t times = shape.heads / shape.kv_heads;
    const at::Tensor x = Computed(qkv);
    for (const AttentionRun& run : runs) {
      auto [o, log_sum] = at::_scaled_dot_product_flash_attention_for_cpu(
          HeadsOf(x, run, 0, shape.heads, d),
          RepeatHeads(HeadsOf(x, run, shape.heads, shape.kv_heads, d), times),
          RepeatHeads(HeadsOf(x, run, shape.heads + shape.kv_heads, shape.kv_heads, d), times), 0.0,
          true, {}, scale);
      if (sinks != nullptr) log_sum = AddSinks(*sinks, log_sum, o);
      HeadsOf(out, run, 0, shape.heads, d).copy_(o);
      saved.push_back(log_sum);
    }
    context->save_for_backward(std::move(saved));
    Capture(context, "shape", shape);
    Capture(context, "runs", runs);
    Capture(context, "scale", scale);
    Capture(context, "sinks", sinks);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor qkv = Computed(saved[0]);
    const at::Tensor out = Computed(saved[1]);
    const auto& shape = Captured<AttentionShape>(context, "shape");
    const auto& runs = Captured<std::vector<AttentionRun>>(context, "runs");
    const int64_t d = shape.head_dim;
    const int64_t times = shape.heads / shape.kv_heads;
    const at::Tensor dout = Computed(gradients[0].contiguous());
    auto* const sinks = Captured<parallel::Parameter*>(context, "sinks");
    at::Tensor dqkv = at::empty_like(saved[0]);
    for (size_t i = 0; i < runs.size(); ++i) {
      const AttentionRun& run = runs[i];
      const auto [dq, dk, dv] = at::_scaled_dot_product_flash_attention_for_cpu_backward(
          HeadsOf(dout, run, 0, shape.heads, d), HeadsOf(qkv, run, 0, shape.heads, d),
          RepeatHeads(HeadsOf(qkv, run, shape.heads, shape.kv_heads, d), times),
          RepeatHeads(HeadsOf(qkv, run, shape.heads + shape.kv_heads, shape.kv_heads, d), times),
          HeadsOf(out, run, 0, shape.heads, d), saved[i + 2], 0.0, true, {},
          Captured<std::optional<double>>(context, "scale"));
      HeadsOf(dqkv, run, 0, shape.heads, d).copy_(dq);
      HeadsOf(dqkv, run, shape.heads, shape.kv_heads, d).copy_(SumRepeats(dk, times));
      HeadsOf(dqkv, run, shape.heads + shape.kv_heads, shape.kv_heads, d)
          .copy_(SumRepeats(dv, times));
      if (sinks == nullptr) continue;
      AddSinkGradient(*sinks, saved[i + 2], HeadsOf(out, run, 0, shape.heads, d),
                      HeadsOf(dout, run, 0, shape.heads, d));
    }
    return {dqkv, {}, {}, {}, {}};
  }
};

// FlashAttention-2 over all sequences at once (Dao 2023), through PyTorch's build of it; bf16 only.
struct CudaFlashAttention : Function<CudaFlashAttention> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const AttentionShape& shape, const at::Tensor& boundaries,
                            int64_t longest, const std::optional<double>& scale,
                            parallel::Parameter* sinks) {
    const int64_t d = shape.head_dim;
    const at::Tensor heads = qkv.view({qkv.size(0), shape.heads + 2 * shape.kv_heads, d});
    auto [out, log_sum, seed, offset, debug] = at::_flash_attention_forward(
        heads.narrow(1, 0, shape.heads), heads.narrow(1, shape.heads, shape.kv_heads),
        heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads), boundaries, boundaries,
        longest, longest, 0.0, true, false, scale);
    if (sinks != nullptr) {
      at::Tensor by_head = out.transpose(0, 1);
      log_sum = AddSinks(*sinks, log_sum, by_head);
    }
    context->save_for_backward({qkv, out, log_sum, seed, offset, boundaries});
    Capture(context, "shape", shape);
    context->saved_data["longest"] = longest;
    Capture(context, "scale", scale);
    Capture(context, "sinks", sinks);
    return out.view({qkv.size(0), shape.heads * d});
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& shape = Captured<AttentionShape>(context, "shape");
    const int64_t d = shape.head_dim;
    const int64_t longest = context->saved_data["longest"].toInt();
    const at::Tensor heads = saved[0].view({saved[0].size(0), shape.heads + 2 * shape.kv_heads, d});
    const at::Tensor dout = gradients[0].contiguous().view_as(saved[1]);
    if (auto* const sinks = Captured<parallel::Parameter*>(context, "sinks"))
      AddSinkGradient(*sinks, saved[2], saved[1].transpose(0, 1), dout.transpose(0, 1));
    const auto [dq, dk, dv] = at::_flash_attention_backward(
        dout, heads.narrow(1, 0, shape.heads), heads.narrow(1, shape.heads, shape.kv_heads),
        heads.narrow(1, shape.heads + shape.kv_heads, shape.kv_heads), saved[1], saved[2], saved[5],
        saved[5], longest, longest, 0.0, true, saved[3], saved[4],
        Captured<std::optional<double>>(context, "scale"));
    return {at::cat({dq, dk, dv}, 1).view_as(saved[0]), {}, {}, {}, {}, {}};
  }
};

}  // namespace

bool IsForFlash(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.is_cuda() && qkv.scalar_type() == at::kBFloat16 && shape.head_dim % 8 == 0 &&
         shape.head_dim <= 256;
}

std::vector<AttentionRun> EqualRuns(const std::vector<int64_t>& boundaries) {
  std::vector<AttentionRun> runs;
  for (size_t i = 0; i + 1 < boundaries.size(); ++i) {
    const int64_t length = boundaries[i + 1] - boundaries[i];
    if (length == 0) continue;
    if (!runs.empty() && runs.back().length == length) {
      ++runs.back().count;
    } else {
      runs.push_back({boundaries[i], 1, length});
    }
  }
  return runs;
}

at::Tensor HeadsOf(const at::Tensor& x, const AttentionRun& run, int64_t first, int64_t heads,
                   int64_t d) {
  return x.narrow(0, run.begin, run.count * run.length)
      .narrow(1, first * d, heads * d)
      .view({run.count, run.length, heads, d})
      .transpose(1, 2);
}

at::Tensor PackedAttention(const at::Tensor& qkv, const AttentionShape& shape,
                           const Packing& packing, const ScoreOptions& options) {
  const std::vector<AttentionRun> runs = EqualRuns(packing.boundaries);
  int64_t longest = 0;
  for (const AttentionRun& run : runs) longest = std::max(longest, run.length);
  const bool fused = parallel::ByHostKernels(qkv) || IsForFlash(qkv, shape);
  if (NeedsExact(options, longest) || (options.sinks != nullptr && !fused))
    return ExactPackedAttention(qkv, shape, runs, options);
  const std::optional<double> scale =
      options.scale != 0 ? std::optional(options.scale) : std::nullopt;
  if (parallel::ByHostKernels(qkv))
    return CpuAttention::apply(qkv, shape, runs, scale, options.sinks);
  if (IsForFlash(qkv, shape)) {
    const at::Tensor boundaries =
        parallel::SentTo(qkv.device(), at::tensor(packing.boundaries, at::kInt));
    return CudaFlashAttention::apply(qkv, shape, boundaries, longest, scale, options.sinks);
  }
  std::vector<at::Tensor> parts;
  const int64_t d = shape.head_dim;
  for (const AttentionRun& run : runs) {
    const at::Tensor out = at::scaled_dot_product_attention(
        HeadsOf(qkv, run, 0, shape.heads, d), HeadsOf(qkv, run, shape.heads, shape.kv_heads, d),
        HeadsOf(qkv, run, shape.heads + shape.kv_heads, shape.kv_heads, d), {}, 0.0, true, scale,
        true);
    parts.push_back(out.transpose(1, 2).reshape({run.count * run.length, shape.heads * d}));
  }
  return at::cat(parts, 0);
}

}  // namespace keel::model
