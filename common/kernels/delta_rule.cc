#include "common/kernels/delta_rule.h"

#include <cstddef>
#include <cstring>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KEEL_DELTA_X86
#include <immintrin.h>
#endif

namespace keel::kernels {

namespace {

constexpr float kLengthEps = 1e-6f;
constexpr int64_t kSegment = 64;  // tokens whose states a gradient keeps at a time

}  // namespace

namespace delta_baseline {
constexpr int kLanes = 8;
#define KEEL_DECODE_LANES 8
#include "common/kernels/delta_rule-inl.h"
#undef KEEL_DECODE_LANES
}  // namespace delta_baseline

#ifdef KEEL_DELTA_X86

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace delta_avx2 {
constexpr int kLanes = 8;
#define KEEL_DECODE_LANES 8
#include "common/kernels/delta_rule-inl.h"
#undef KEEL_DECODE_LANES
}  // namespace delta_avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
namespace delta_avx512 {
constexpr int kLanes = 16;
#define KEEL_DECODE_LANES 16
#include "common/kernels/delta_rule-inl.h"
#undef KEEL_DECODE_LANES
}  // namespace delta_avx512
#pragma GCC pop_options

#endif  // KEEL_DELTA_X86

namespace {

constexpr int64_t kMostColumns = 32;  // kColumns of each instruction set

struct DeltaKernels {
  decltype(&delta_baseline::Entry::RuleF) rule_f32;
  decltype(&delta_baseline::Entry::RuleB) rule_bf16;
  decltype(&delta_baseline::Entry::GradientF) gradient_f32;
  decltype(&delta_baseline::Entry::GradientB) gradient_bf16;
  decltype(&delta_baseline::Entry::ConvolveF) convolve_f32;
  decltype(&delta_baseline::Entry::ConvolveB) convolve_bf16;
  decltype(&delta_baseline::Entry::ConvolveGradientF) convolve_gradient_f32;
  decltype(&delta_baseline::Entry::ConvolveGradientB) convolve_gradient_bf16;
};

template <typename Entry>
constexpr DeltaKernels KernelsOf() {
  return {Entry::RuleF,     Entry::RuleB,     Entry::GradientF,         Entry::GradientB,
          Entry::ConvolveF, Entry::ConvolveB, Entry::ConvolveGradientF, Entry::ConvolveGradientB};
}

DeltaKernels FirstUsable() {
#ifdef KEEL_DELTA_X86
  if (__builtin_cpu_supports("x86-64-v4")) return KernelsOf<delta_avx512::Entry>();
  if (__builtin_cpu_supports("x86-64-v3")) return KernelsOf<delta_avx2::Entry>();
#endif
  return KernelsOf<delta_baseline::Entry>();
}

const DeltaKernels& Kernels() {
  static const DeltaKernels kernels = FirstUsable();
  return kernels;
}

}  // namespace

int64_t DeltaScratch(int64_t key_dim) { return (2 * kSegment + kMostColumns) * key_dim; }

int64_t DeltaGradientScratch(int64_t tokens, int64_t key_dim) {
  const int64_t segments = (tokens + kSegment - 1) / kSegment;
  const int64_t state = key_dim * kMostColumns;
  return tokens * (4 * key_dim + 2) + (segments + kSegment + 2) * state +
         2 * kSegment * kMostColumns;
}

template <>
void DeltaRule(const DeltaText<float>& text, float* states, float* out, int64_t out_stride,
               float* scratch) {
  Kernels().rule_f32(text, states, out, out_stride, scratch);
}
template <>
void DeltaRule(const DeltaText<uint16_t>& text, float* states, uint16_t* out, int64_t out_stride,
               float* scratch) {
  Kernels().rule_bf16(text, states, out, out_stride, scratch);
}

template <>
void DeltaRuleGradient(const DeltaText<float>& text, const float* dout, int64_t dout_stride,
                       const DeltaGradients<float>& gradients, float* scratch) {
  Kernels().gradient_f32(text, dout, dout_stride, gradients, scratch);
}
template <>
void DeltaRuleGradient(const DeltaText<uint16_t>& text, const uint16_t* dout, int64_t dout_stride,
                       const DeltaGradients<uint16_t>& gradients, float* scratch) {
  Kernels().gradient_bf16(text, dout, dout_stride, gradients, scratch);
}

template <>
void ConvolveSilu(const float* x, int64_t x_stride, int64_t tokens, int64_t channels,
                  const float* weight, int64_t taps, float* out, int64_t out_stride) {
  Kernels().convolve_f32(x, x_stride, tokens, channels, weight, taps, out, out_stride);
}
template <>
void ConvolveSilu(const uint16_t* x, int64_t x_stride, int64_t tokens, int64_t channels,
                  const float* weight, int64_t taps, uint16_t* out, int64_t out_stride) {
  Kernels().convolve_bf16(x, x_stride, tokens, channels, weight, taps, out, out_stride);
}

template <>
void ConvolveSiluGradient(const float* x, int64_t x_stride, const float* dout, int64_t dout_stride,
                          int64_t tokens, int64_t channels, const float* weight, int64_t taps,
                          float* dx, int64_t dx_stride, float* dweight, float* scratch) {
  Kernels().convolve_gradient_f32(x, x_stride, dout, dout_stride, tokens, channels, weight, taps,
                                  dx, dx_stride, dweight, scratch);
}
template <>
void ConvolveSiluGradient(const uint16_t* x, int64_t x_stride, const uint16_t* dout,
                          int64_t dout_stride, int64_t tokens, int64_t channels,
                          const float* weight, int64_t taps, uint16_t* dx, int64_t dx_stride,
                          float* dweight, float* scratch) {
  Kernels().convolve_gradient_bf16(x, x_stride, dout, dout_stride, tokens, channels, weight, taps,
                                   dx, dx_stride, dweight, scratch);
}

}  // namespace keel::kernels
