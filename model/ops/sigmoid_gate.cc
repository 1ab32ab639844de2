#include "model/ops/sigmoid_gate.h"

#include <ATen/Parallel.h>
#include <torch/csrc/autograd/custom_function.h>

#include "common/kernels/cpu_kernels.h"
#include "parallel/tensor/host_kernels.h"
#include "parallel/tensor/host_tensor.h"

namespace keel::model {

namespace {

using parallel::HostData;
using torch::autograd::AutogradContext;
using torch::autograd::variable_list;

struct SigmoidGateFunction : torch::autograd::Function<SigmoidGateFunction> {
  static at::Tensor forward(AutogradContext* context, const at::Tensor& x,
                            const at::Tensor& strided) {
    const at::Tensor gates = strided.contiguous();
    context->save_for_backward({x, gates});
    at::Tensor out = at::empty_like(x);
    parallel::WithHostType(x, [&]<typename T>(T) {
      at::parallel_for(0, x.numel(), 4096, [&](int64_t begin, int64_t end) {
        kernels::SigmoidGate(HostData<T>(x) + begin, HostData<T>(gates) + begin, end - begin,
                             HostData<T>(out) + begin);
      });
    });
    return out;
  }

  static variable_list backward(AutogradContext* context, variable_list gradients) {
    const variable_list saved = context->get_saved_variables();
    const at::Tensor &x = saved[0], &gates = saved[1];
    const at::Tensor dout = gradients[0].contiguous();
    at::Tensor dx = at::empty_like(x), dgates = at::empty_like(gates);
    parallel::WithHostType(x, [&]<typename T>(T) {
      at::parallel_for(0, x.numel(), 4096, [&](int64_t begin, int64_t end) {
        kernels::SigmoidGateBackward(HostData<T>(dout) + begin, HostData<T>(x) + begin,
                                     HostData<T>(gates) + begin, end - begin,
                                     HostData<T>(dx) + begin, HostData<T>(dgates) + begin);
      });
    });
    return {dx, dgates};
  }
};

}  // namespace

at::Tensor SigmoidGate(const at::Tensor& x, const at::Tensor& gates) {
  if (parallel::ByHostKernels(x)) return SigmoidGateFunction::apply(x, gates);
  const at::Tensor open = at::sigmoid(gates.to(at::kFloat));
  return (x.to(at::kFloat) * open).to(x.scalar_type());
}

}  // namespace keel::model
