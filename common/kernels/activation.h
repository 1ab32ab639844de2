// The activations of feed-forwards without a gate, on host memory. As the kernels of cpu_kernels.h:
// torch-free, one thread, T is float or uint16_t (bfloat16 bits), arithmetic in fp32. A call is of
// one row, so that what a row comes to does not depend on how many there are.
#pragma once

#include <cstdint>

namespace keel::kernels {

// kRelu: what is positive, kRelu2: its square (So et al. 2021). kGelu: x Phi(x), with the distribution
// function of the normal distribution (Hendrycks & Gimpel 2016). kGeluTanh: that by a tanh, as
// Gate::kGeluTanh of cpu_kernels.h.
enum class Curve { kRelu, kRelu2, kGelu, kGeluTanh };

// out[i] = curve(x[i]); out may be x.
template <typename T>
void Activate(Curve curve, const T* x, int64_t n, T* out);
// dx[i] = dout[i] * curve'(x[i]).
template <typename T>
void ActivateBackward(Curve curve, const T* dout, const T* x, int64_t n, T* dx);

}  // namespace keel::kernels
