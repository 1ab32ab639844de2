#include "model/ops/router_load.h"

#include <torch/csrc/autograd/custom_function.h>

#include <tuple>
#include <utility>

#include "parallel/tensor/send.h"

namespace keel::model {

namespace {

using torch::autograd::AutogradContext;
using torch::autograd::Function;
using torch::autograd::variable_list;

// The bits of fp32 `sums` as rows of `like`, the end of the last one zero.
at::Tensor AsRows(const at::Tensor& sums, const at::Tensor& like) {
  const at::Tensor bits = sums.contiguous().view(like.scalar_type());
  const int64_t columns = like.size(1);
  const int64_t rows = (bits.numel() + columns - 1) / columns;
  at::Tensor out = at::zeros({rows, columns}, like.options());
  out.view({-1}).narrow(0, 0, bits.numel()).copy_(bits);
  return out;
}

at::Tensor FromRows(const at::Tensor& rows, int64_t numbers) {
  const int64_t each = 4 / static_cast<int64_t>(rows.element_size());  // of the rows' dtype
  return rows.contiguous().view({-1}).narrow(0, 0, numbers * each).clone().view(at::kFloat);
}

struct AppendFunction : Function<AppendFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& sums) {
    context->saved_data["tokens"] = x.size(0);
    context->saved_data["numbers"] = sums.numel();
    return at::cat({x, AsRows(sums, x)});
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const int64_t tokens = context->saved_data["tokens"].toInt();
    const at::Tensor& joined = gradients[0];
    return {joined.narrow(0, 0, tokens), FromRows(joined.narrow(0, tokens, joined.size(0) - tokens),
                                                  context->saved_data["numbers"].toInt())};
  }
};

struct SplitFunction : Function<SplitFunction> {
  static variable_list forward(AutogradContext* context, const at::Tensor& joined,
                               int64_t numbers) {
    const int64_t carried = (numbers * 4 + joined.size(1) * joined.element_size() - 1) /
                            (joined.size(1) * joined.element_size());
    const int64_t tokens = joined.size(0) - carried;
    static_cast<void>(context);
    return {joined.narrow(0, 0, tokens).clone(),
            FromRows(joined.narrow(0, tokens, carried), numbers)};
  }
  static variable_list backward(AutogradContext* context, variable_list gradients) {
    static_cast<void>(context);
    return {at::cat({gradients[0], AsRows(gradients[1], gradients[0])}), {}};
  }
};

int64_t NumbersOf(const MoeSpec& spec) { return 2 * spec.experts + 2; }

}  // namespace

RouterLoad RouterLoad::Zero(const MoeSpec& spec, at::Device device) {
  if (spec.experts == 0) return {};
  return {at::zeros({NumbersOf(spec)}, at::TensorOptions().dtype(at::kFloat).device(device))};
}

RouterLoad RouterLoad::With(const Routing& routing, const at::Tensor& counted,
                            bool differentiable) const {
  const int64_t tokens = routing.experts.size(0);
  const int64_t top_k = routing.experts.size(1);
  const int64_t experts = routing.probs.size(1);
  const at::Tensor one =
      counted.defined() ? counted : at::ones({tokens}, sums.options().requires_grad(false));
  const at::Tensor each = one.unsqueeze(1).expand({tokens, top_k}).reshape({-1});
  const auto count_of = [&](const at::Tensor& choice) {
    return at::zeros({experts}, one.options()).scatter_add_(0, choice.reshape({-1}), each);
  };
  const at::Tensor chosen = count_of(routing.experts);
  const at::Tensor likeliest =
      routing.biased ? count_of(std::get<1>(at::topk(routing.probs.detach(), top_k, -1))) : chosen;
  const at::Tensor probs = differentiable ? routing.probs : routing.probs.detach();
  const at::Tensor likely = (probs * one.unsqueeze(1)).sum(0);
  const at::Tensor count = one.sum().view({1});
  const at::Tensor share =
      chosen.max().view({1}) / (count * static_cast<double>(top_k)).clamp_min(1);
  return {
      at::cat({sums.narrow(0, 0, experts) + likeliest, sums.narrow(0, experts, experts) + likely,
               sums.narrow(0, 2 * experts, 1) + count,
               at::maximum(sums.narrow(0, 2 * experts + 1, 1).detach(), share)})};
}

at::Tensor RouterLoad::BalanceLoss() const {
  const int64_t experts = (sums.numel() - 2) / 2;
  const at::Tensor count = sums.select(0, 2 * experts).detach().clamp_min(1);
  const at::Tensor chosen = sums.narrow(0, 0, experts).detach() / count;
  const at::Tensor likely = sums.narrow(0, experts, experts) / count;
  return (chosen * likely).sum() * static_cast<double>(experts);
}

at::Tensor RouterLoad::BusiestShare() const { return sums.detach().select(0, sums.numel() - 1); }

at::Tensor CountedTokens(const at::Tensor& learnt, const Packing& packing) {
  if (!learnt.defined()) return {};
  const std::vector<int64_t>& boundaries = packing.boundaries;
  const at::Tensor ends = parallel::SentTo(learnt.device(), at::tensor(boundaries, at::kLong));
  // Those before each token, and so in each sequence.
  const at::Tensor before = at::constant_pad_nd(learnt.to(at::kLong).cumsum(0), {1, 0});
  const at::Tensor in_each = before.index_select(0, ends).diff();
  // With their number, for which the host would have to wait.
  return at::repeat_interleave(in_each.gt(0).to(at::kFloat), ends.diff(), 0, boundaries.back());
}

int64_t CarriedRows(const MoeSpec& spec, int64_t columns, at::ScalarType dtype) {
  if (spec.experts == 0) return 0;
  const int64_t row = columns * static_cast<int64_t>(at::elementSize(dtype));
  return (NumbersOf(spec) * 4 + row - 1) / row;
}

at::Tensor AppendLoad(const at::Tensor& x, const RouterLoad& load) {
  return AppendFunction::apply(x, load.sums);
}

std::pair<at::Tensor, RouterLoad> SplitLoad(const at::Tensor& joined, const MoeSpec& spec) {
  const variable_list parts = SplitFunction::apply(joined, NumbersOf(spec));
  return {parts[0], {parts[1]}};
}

}  // namespace keel::model
