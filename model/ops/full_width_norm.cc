#include "model/ops/full_width_norm.h"

#include "model/ops/decode_ops.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/regions.h"

namespace keel::model {

namespace {

using parallel::Capture;
using parallel::Captured;
using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

at::Tensor Queries(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.narrow(1, 0, shape.heads * shape.head_dim);
}
at::Tensor Keys(const at::Tensor& qkv, const AttentionShape& shape) {
  return qkv.narrow(1, shape.heads * shape.head_dim, shape.kv_heads * shape.head_dim);
}

// Row sums of q's and of k's products over all ranks, [T, 2] fp32; each row in one order, whatever
// is beside it.
at::Tensor RowSums(const at::Tensor& q, const at::Tensor& k, const FullWidth& width,
                   bool fixed_order) {
  at::Tensor sums = at::zeros({q.size(0), 2}, q.options().dtype(at::kFloat));
  if (parallel::ByHostKernels(q)) {
    const at::Tensor wide[] = {q.contiguous(), k.contiguous()};
    for (int which = 0; which < (width.counts_k ? 2 : 1); ++which) {
      const int64_t n = wide[which].size(1);
      const float* x = wide[which].const_data_ptr<float>();
      for (int64_t row = 0; row < q.size(0); ++row, x += n) {
        double sum = 0;
        for (int64_t i = 0; i < n; ++i) sum += static_cast<double>(x[i]);
        sums.data_ptr<float>()[2 * row + which] = static_cast<float>(sum);
      }
    }
  } else {
    sums.select(1, 0).copy_(q.sum(1));
    if (width.counts_k) sums.select(1, 1).copy_(k.sum(1));
  }
  parallel::SumOverRanks(sums, *width.group, fixed_order);
  return sums;
}

// [T, 2]: 1 / rms of q and of k.
at::Tensor Rstd(const at::Tensor& qkv, const AttentionShape& shape, const FullWidth& width,
                bool fixed_order) {
  at::Tensor sums = RowSums(Queries(qkv, shape).to(at::kFloat).square(),
                            Keys(qkv, shape).to(at::kFloat).square(), width, fixed_order);
  sums.select(1, 0).div_(static_cast<double>(width.q));
  sums.select(1, 1).div_(static_cast<double>(width.k));
  return sums.add_(width.norm.eps).rsqrt_();
}

at::Tensor Weight(const at::Tensor& weight, const FullWidth& width) {
  return weight.to(at::kFloat).add(width.norm.offset);
}

struct FullWidthFunction : Function<FullWidthFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& qkv,
                            const AttentionShape& shape, parallel::Parameter* q_norm,
                            parallel::Parameter* k_norm, const FullWidth& width, bool fixed_order) {
    at::Tensor out = qkv.clone();
    const at::Tensor rstd = Rstd(qkv, shape, width, fixed_order);
    const auto normalize = [&](at::Tensor x, int64_t column, const at::Tensor& weight) {
      x.copy_(x.to(at::kFloat) * rstd.narrow(1, column, 1) * Weight(weight, width));
    };
    normalize(Queries(out, shape), 0, q_norm->value);
    normalize(Keys(out, shape), 1, k_norm->value);
    context->save_for_backward({qkv, rstd});
    Capture(context, "shape", shape);
    Capture(context, "q_norm", q_norm);
    Capture(context, "k_norm", k_norm);
    Capture(context, "width", width);
    return out;
  }

  // With h = x * rstd: dx = rstd * (w dy - h * mean(w dy h)), the mean over all ranks' heads. Where
  // several ranks hold the same keys, each has the gradient of its own queries: the mean's part
  // is taken off by the one that counts them.
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const auto& shape = Captured<AttentionShape>(context, "shape");
    const auto& width = Captured<FullWidth>(context, "width");
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor dx = dy.clone();
    struct NormedPart {
      at::Tensor h, gw;
    };
    const auto part = [&](at::Tensor (*of)(const at::Tensor&, const AttentionShape&),
                          int64_t column, const char* name) {
      parallel::Parameter* norm = Captured<parallel::Parameter*>(context, name);
      const at::Tensor g = of(dy, shape).to(at::kFloat);
      const at::Tensor h = of(saved[0], shape).to(at::kFloat) * saved[1].narrow(1, column, 1);
      norm->gradient.add_((g * h).sum(0));
      return NormedPart{h, g * Weight(norm->value, width)};
    };
    const NormedPart q = part(Queries, 0, "q_norm");
    const NormedPart k = part(Keys, 1, "k_norm");
    FullWidth all = width;
    all.counts_k = true;  // parts of a gradient add up
    const at::Tensor dots = RowSums(q.gw * q.h, k.gw * k.h, all, false);
    const auto write = [&](at::Tensor out, const NormedPart& p, int64_t column, double share) {
      out.copy_((p.gw - p.h * (dots.narrow(1, column, 1) * share)) * saved[1].narrow(1, column, 1));
    };
    write(Queries(dx, shape), q, 0, 1 / static_cast<double>(width.q));
    write(Keys(dx, shape), k, 1, width.counts_k ? 1 / static_cast<double>(width.k) : 0);
    return {dx, {}, {}, {}, {}, {}};
  }
};

}  // namespace

at::Tensor NormalizeFullWidth(const at::Tensor& qkv, const AttentionShape& shape,
                              parallel::Parameter& q_norm, parallel::Parameter& k_norm,
                              const FullWidth& width, bool fixed_order) {
  return FullWidthFunction::apply(qkv, shape, &q_norm, &k_norm, width, fixed_order);
}

void NormalizeFullWidthInPlace(at::Tensor& qkv, const AttentionShape& shape,
                               const at::Tensor& q_weight, const at::Tensor& k_weight,
                               const FullWidth& width, bool fixed_order) {
  const at::Tensor rstd = Rstd(qkv, shape, width, fixed_order);
  const auto normalize = [&](at::Tensor x, int64_t column, const at::Tensor& weight) {
    x.copy_(x.to(at::kFloat) * rstd.narrow(1, column, 1) * Weight(weight, width));
  };
  normalize(Queries(qkv, shape), 0, q_weight);
  normalize(Keys(qkv, shape), 1, k_weight);
}

}  // namespace keel::model
