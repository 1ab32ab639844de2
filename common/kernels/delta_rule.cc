#include "common/kernels/delta_rule.h"

#include <cstddef>
#include <cstring>

#include "common/kernels/exp-inl.h"

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KEEL_DELTA_X86
#include <immintrin.h>
#endif

namespace keel::kernels {

namespace {

constexpr float kLengthEps = 1e-6f;
constexpr int64_t kSegment = 64;         // tokens whose states a gradient keeps at a time
constexpr int64_t kScratchColumns = 32;  // of a state, computed at a time

}  // namespace

namespace delta_baseline {
constexpr int kLanes = 8;
#define KEEL_KERNEL_LANES 8
#include "common/kernels/delta_rule-inl.h"
#undef KEEL_KERNEL_LANES
}  // namespace delta_baseline

#ifdef KEEL_DELTA_X86

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace delta_avx2 {
constexpr int kLanes = 8;
#define KEEL_KERNEL_LANES 8
#include "common/kernels/delta_rule-inl.h"
#undef KEEL_KERNEL_LANES
}  // namespace delta_avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
namespace delta_avx512 {
constexpr int kLanes = 16;
#define KEEL_KERNEL_LANES 16
#include "common/kernels/delta_rule-inl.h"
#undef KEEL_KERNEL_LANES
}  // namespace delta_avx512
#pragma GCC pop_options

#endif  // KEEL_DELTA_X86

namespace {

template <template <typename> typename Entry, typename T>
constexpr DeltaKernelsOf<T> Of() {
  return {Entry<T>::Rule, Entry<T>::RuleGradient, Entry<T>::Convolution,
          Entry<T>::ConvolutionGradient};
}

template <template <typename> typename Entry>
constexpr DeltaKernels KernelsOf(const char* name) {
  return {name, Of<Entry, float>(), Of<Entry, uint16_t>()};
}

constexpr DeltaKernels kAll[] = {
#ifdef KEEL_DELTA_X86
    KernelsOf<delta_avx512::Entry>("avx512"),
    KernelsOf<delta_avx2::Entry>("avx2"),
#endif
    KernelsOf<delta_baseline::Entry>("baseline"),
};

size_t FirstUsable() {
#ifdef KEEL_DELTA_X86
  if (__builtin_cpu_supports("x86-64-v4")) return 0;
  return __builtin_cpu_supports("x86-64-v3") ? 1 : 2;
#else
  return 0;
#endif
}

template <typename T>
const DeltaKernelsOf<T>& Kernels() {
  static const DeltaKernels& first = UsableDeltaKernels().front();
  if constexpr (sizeof(T) == sizeof(float)) {
    return first.fp32;
  } else {
    return first.bf16;
  }
}

}  // namespace

std::span<const DeltaKernels> UsableDeltaKernels() {
  return std::span(kAll).subspan(FirstUsable());
}

int64_t DeltaScratch(int64_t key_dim) { return (2 * kSegment + kScratchColumns) * key_dim; }

int64_t DeltaGradientScratch(int64_t tokens, int64_t key_dim) {
  const int64_t segments = (tokens + kSegment - 1) / kSegment;
  const int64_t state = key_dim * kScratchColumns;
  return tokens * (4 * key_dim + 2) + (segments + kSegment + 2) * state +
         2 * kSegment * kScratchColumns;
}

template <typename T>
void DeltaRule(const DeltaText<T>& text, float* states, T* out, int64_t out_stride,
               float* scratch) {
  Kernels<T>().rule(text, states, out, out_stride, scratch);
}

template <typename T>
void DeltaRuleGradient(const DeltaText<T>& text, const T* dout, int64_t dout_stride,
                       const DeltaGradients<T>& gradients, float* scratch) {
  Kernels<T>().rule_gradient(text, dout, dout_stride, gradients, scratch);
}

template <typename T>
void ConvolveSilu(const T* x, int64_t x_stride, int64_t tokens, int64_t channels,
                  const float* weight, int64_t taps, T* out, int64_t out_stride) {
  Kernels<T>().convolve(x, x_stride, tokens, channels, weight, taps, out, out_stride);
}

template <typename T>
void ConvolveSiluGradient(const T* x, int64_t x_stride, const T* dout, int64_t dout_stride,
                          int64_t tokens, int64_t channels, const float* weight, int64_t taps,
                          T* dx, int64_t dx_stride, float* dweight, float* scratch) {
  Kernels<T>().convolve_gradient(x, x_stride, dout, dout_stride, tokens, channels, weight, taps, dx,
                                 dx_stride, dweight, scratch);
}

#define KEEL_FOR(T)                                                                          \
  template void DeltaRule(const DeltaText<T>&, float*, T*, int64_t, float*);                 \
  template void DeltaRuleGradient(const DeltaText<T>&, const T*, int64_t,                    \
                                  const DeltaGradients<T>&, float*);                         \
  template void ConvolveSilu(const T*, int64_t, int64_t, int64_t, const float*, int64_t, T*, \
                             int64_t);                                                       \
  template void ConvolveSiluGradient(const T*, int64_t, const T*, int64_t, int64_t, int64_t, \
                                     const float*, int64_t, T*, int64_t, float*, float*)
KEEL_FOR(float);
KEEL_FOR(uint16_t);

}  // namespace keel::kernels
