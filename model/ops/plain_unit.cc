#include "model/ops/plain_unit.h"

#include <ATen/Parallel.h>

#include "common/kernels/activation.h"
#include "parallel/tensor/autograd_capture.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/host_tensor.h"

namespace keel::model {

namespace {

using parallel::HostData;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

kernels::Curve CurveOf(Activation activation) {
  switch (activation) {
    case Activation::kRelu:
      return kernels::Curve::kRelu;
    case Activation::kRelu2:
      return kernels::Curve::kRelu2;
    case Activation::kGelu:
      return kernels::Curve::kGelu;
    case Activation::kGeluTanh:
      return kernels::Curve::kGeluTanh;
    case Activation::kSilu:
      break;
  }
  TORCH_CHECK(false, "a feed-forward without a gate has no silu");
}

const char* Approximation(Activation activation) {
  return activation == Activation::kGelu ? "none" : "tanh";
}

at::Tensor ActivatedOnDevice(const at::Tensor& x, Activation activation) {
  if (activation == Activation::kRelu) return at::relu(x);
  if (activation == Activation::kRelu2) return at::relu(x).square();
  return at::gelu(x, Approximation(activation));
}

at::Tensor GradientOnDevice(const at::Tensor& dout, const at::Tensor& x, Activation activation) {
  if (activation == Activation::kRelu) return dout * x.gt(0);
  if (activation == Activation::kRelu2) return dout * at::relu(x).mul_(2);
  return at::gelu_backward(dout, x, Approximation(activation));
}

// `out` may be x.
void ActivateInto(const at::Tensor& x, Activation activation, at::Tensor& out) {
  const kernels::Curve curve = CurveOf(activation);
  if (!parallel::ByHostKernels(x)) {
    out.copy_(ActivatedOnDevice(x, activation));
    return;
  }
  const int64_t n = x.size(1);
  parallel::WithHostType(x, [&]<typename T>(T) {
    at::parallel_for(0, x.size(0), parallel::RowGrain(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        kernels::Activate(curve, HostData<T>(x) + row * n, n, HostData<T>(out) + row * n);
      }
    });
  });
}

at::Tensor ActivateGradient(const at::Tensor& dout, const at::Tensor& x, Activation activation) {
  if (!parallel::ByHostKernels(x)) return GradientOnDevice(dout, x, activation);
  const int64_t n = x.size(1);
  at::Tensor dx = at::empty_like(x);
  parallel::WithHostType(x, [&]<typename T>(T) {
    at::parallel_for(0, x.size(0), parallel::RowGrain(n), [&](int64_t begin, int64_t end) {
      for (int64_t row = begin; row < end; ++row) {
        kernels::ActivateBackward(CurveOf(activation), HostData<T>(dout) + row * n,
                                  HostData<T>(x) + row * n, n, HostData<T>(dx) + row * n);
      }
    });
  });
  return dx;
}

struct PlainUnitFunction : torch::autograd::Function<PlainUnitFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x, Activation activation) {
    context->save_for_backward({x});
    parallel::Capture(context, "activation", activation);
    at::Tensor out = at::empty_like(x);
    ActivateInto(x, activation, out);
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    return {ActivateGradient(gradients[0].contiguous(), context->get_saved_variables()[0],
                             parallel::Captured<Activation>(context, "activation")),
            {}};
  }
};

}  // namespace

at::Tensor PlainUnit(const at::Tensor& x, Activation activation) {
  return PlainUnitFunction::apply(x, activation);
}

void PlainUnitInPlace(at::Tensor& x, Activation activation) { ActivateInto(x, activation, x); }

}  // namespace keel::model
