#include "model/ops/layer_norm.h"

#include <ATen/Parallel.h>

#include <algorithm>

#include "common/kernels/layer_norm.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/host_tensor.h"

namespace keel::model {

namespace {

using parallel::HostData;
using parallel::WithHostType;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

template <typename T>
const T* DataOrNull(const at::Tensor& t) {
  return t.defined() ? HostData<T>(t) : nullptr;
}

at::Tensor OffsetWeight(const at::Tensor& weight, double offset) {
  return weight.to(at::kFloat).add(offset);
}

// `bias` may be undefined. Returns the statistics, [rows, 2] fp32: mean and 1 / sqrt(variance +
// eps).
at::Tensor NormalizeInto(const at::Tensor& x, const at::Tensor& weight, const at::Tensor& bias,
                         const NormOptions& options, at::Tensor& out) {
  const int64_t n = x.size(-1);
  const int64_t rows = x.numel() / n;
  if (!parallel::ByHostKernels(x)) {
    const at::Tensor wide = x.view({rows, n}).to(at::kFloat);
    const at::Tensor mean = wide.mean(1, true);
    const at::Tensor centered = wide - mean;
    const at::Tensor r = centered.square().mean(1, true).add_(options.eps).rsqrt_();
    at::Tensor normed = (centered * r).mul_(OffsetWeight(weight, options.offset));
    if (bias.defined()) normed.add_(bias);
    out.view({rows, n}).copy_(normed);
    return at::cat({mean, r}, 1);
  }
  const kernels::NormScalars scalars = {static_cast<float>(options.eps),
                                        static_cast<float>(options.offset)};
  at::Tensor statistics = at::empty({rows, 2}, x.options().dtype(at::kFloat));
  WithHostType(x, [&]<typename T>(T) {
    at::parallel_for(0, rows, parallel::RowGrain(n), [&](int64_t begin, int64_t end) {
      kernels::LayerNorm(HostData<T>(x) + begin * n, HostData<T>(weight), DataOrNull<T>(bias),
                         scalars, end - begin, n, HostData<T>(out) + begin * n,
                         statistics.data_ptr<float>() + 2 * begin);
    });
  });
  return statistics;
}

// The number of partial sums of the weights' gradients is fixed, so that results do not depend on
// threads.
constexpr int64_t kLayerNormPartials = 16;

// Both undefined without a bias, as no tensor among a function's arguments may be.
struct BiasOfNorm {
  at::Tensor value, gradient;
};

struct LayerNormFunction : torch::autograd::Function<LayerNormFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, const at::Tensor& weight,
                            const at::Tensor& weight_gradient, const BiasOfNorm& bias,
                            const NormOptions& options) {
    at::Tensor out = at::empty_like(x);
    const at::Tensor statistics = NormalizeInto(x, weight, bias.value, options, out);
    context->save_for_backward({x, weight, statistics});
    context->saved_data["weight_gradient"] = weight_gradient;
    parallel::Capture(context, "bias_gradient", bias.gradient);
    context->saved_data["offset"] = options.offset;
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor& x = saved[0];
    const at::Tensor dy = gradients[0].contiguous();
    at::Tensor weight_gradient = context->saved_data["weight_gradient"].toTensor();
    at::Tensor bias_gradient = parallel::Captured<at::Tensor>(context, "bias_gradient");
    const double offset = context->saved_data["offset"].toDouble();
    const at::Tensor dx =
        parallel::ByHostKernels(x)
            ? OnHost(dy, x, saved[1], offset, saved[2], weight_gradient, bias_gradient)
            : Composed(dy, x, saved[1], offset, saved[2], weight_gradient, bias_gradient);
    return {dx, {}, {}, {}, {}};
  }

 private:
  static at::Tensor OnHost(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                           double offset, const at::Tensor& statistics, at::Tensor& weight_gradient,
                           at::Tensor& bias_gradient) {
    const int64_t n = x.size(-1);
    const int64_t rows = x.numel() / n;
    const int64_t pieces = std::min(kLayerNormPartials, std::max<int64_t>(1, rows));
    at::Tensor dx = at::empty_like(x);
    at::Tensor partial = at::zeros({2, pieces, n}, weight_gradient.options());
    float* const of_weight = partial.data_ptr<float>();
    float* const of_bias = bias_gradient.defined() ? of_weight + pieces * n : nullptr;
    WithHostType(x, [&]<typename T>(T) {
      at::parallel_for(0, pieces, 1, [&](int64_t first, int64_t last) {
        for (int64_t p = first; p < last; ++p) {
          const int64_t begin = rows * p / pieces;
          kernels::LayerNormBackward(
              HostData<T>(dy) + begin * n, HostData<T>(x) + begin * n, HostData<T>(weight),
              static_cast<float>(offset), statistics.const_data_ptr<float>() + 2 * begin,
              rows * (p + 1) / pieces - begin, n, HostData<T>(dx) + begin * n, of_weight + p * n,
              of_bias != nullptr ? of_bias + p * n : nullptr);
        }
      });
    });
    weight_gradient.add_(partial[0].sum(0));
    if (bias_gradient.defined()) bias_gradient.add_(partial[1].sum(0));
    return dx;
  }

  static at::Tensor Composed(const at::Tensor& dy, const at::Tensor& x, const at::Tensor& weight,
                             double offset, const at::Tensor& statistics,
                             at::Tensor& weight_gradient, at::Tensor& bias_gradient) {
    const int64_t n = x.size(-1);
    const at::Tensor r = statistics.narrow(1, 1, 1);
    const at::Tensor h = (x.view({-1, n}).to(at::kFloat) - statistics.narrow(1, 0, 1)) * r;
    const at::Tensor d = dy.view({-1, n}).to(at::kFloat);
    weight_gradient.add_((d * h).sum(0));
    if (bias_gradient.defined()) bias_gradient.add_(d.sum(0));
    const at::Tensor g = d * OffsetWeight(weight, offset);
    const at::Tensor dx = (g - g.mean(1, true) - h * (g * h).mean(1, true)) * r;
    return dx.to(x.scalar_type()).view_as(x);
  }
};

}  // namespace

at::Tensor LayerNorm(const at::Tensor& x, parallel::Parameter& weight, parallel::Parameter* bias,
                     const NormOptions& options) {
  BiasOfNorm added;
  if (bias != nullptr) added = {bias->value, bias->gradient};
  return LayerNormFunction::apply(x, weight.value, weight.gradient, added, options);
}

void LayerNormInto(const at::Tensor& x, const parallel::Parameter& weight,
                   const parallel::Parameter* bias, const NormOptions& options, at::Tensor& out) {
  NormalizeInto(x, weight.value, bias != nullptr ? bias->value : at::Tensor(), options, out);
}

}  // namespace keel::model
