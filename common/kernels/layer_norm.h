// Layer normalisation on host memory (Ba et al. 2016). As the kernels of cpu_kernels.h: torch-free,
// one thread, T is float or uint16_t (bfloat16 bits), arithmetic in fp32, and a row's result does
// not depend on how rows are split into calls.
#pragma once

#include <cstdint>

#include "common/kernels/cpu_kernels.h"

namespace keel::kernels {

// out = (x - mean) / sqrt(variance + eps) * (offset + weight) + bias per row of n. bias may be
// null. statistics [rows, 2] receives the mean and 1 / sqrt(variance + eps). out may be x.
template <typename T>
void LayerNorm(const T* x, const T* weight, const T* bias, const NormScalars& scalars, int64_t rows,
               int64_t n, T* out, float* statistics);

// dx from dy; adds to weight_gradient [n], and to bias_gradient [n] where that is not null, in the
// order of the rows. dx may be dy.
template <typename T>
void LayerNormBackward(const T* dy, const T* x, const T* weight, float offset,
                       const float* statistics, int64_t rows, int64_t n, T* dx,
                       float* weight_gradient, float* bias_gradient);

}  // namespace keel::kernels
