#include "common/kernels/cpu_decode.h"

#include <cmath>
#include <cstring>
#include <type_traits>

#if defined(__x86_64__) && defined(__GNUC__) && !defined(__clang__)
#define KEEL_DECODE_X86
#include <immintrin.h>
#endif

namespace keel::kernels {

namespace baseline {
constexpr int kLanes = 8;
#define KEEL_KERNEL_LANES 8
#include "common/kernels/cpu_decode-inl.h"
#undef KEEL_KERNEL_LANES
}  // namespace baseline

#ifdef KEEL_DECODE_X86

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v3")
namespace avx2 {
constexpr int kLanes = 8;
#define KEEL_KERNEL_LANES 8
#include "common/kernels/cpu_decode-inl.h"
#undef KEEL_KERNEL_LANES
}  // namespace avx2
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,prefer-vector-width=512")
namespace avx512 {
constexpr int kLanes = 16;
#define KEEL_KERNEL_LANES 16
#include "common/kernels/cpu_decode-inl.h"
#undef KEEL_KERNEL_LANES
}  // namespace avx512
#pragma GCC pop_options

#pragma GCC push_options
#pragma GCC target("arch=x86-64-v4,avx512bf16,prefer-vector-width=512")
namespace avx512_bf16 {
constexpr int kLanes = 16;
#define KEEL_KERNEL_LANES 16
#define KEEL_DECODE_BF16
#include "common/kernels/cpu_decode-inl.h"
#undef KEEL_DECODE_BF16
#undef KEEL_KERNEL_LANES
}  // namespace avx512_bf16
#pragma GCC pop_options

#endif  // KEEL_DECODE_X86

namespace {

template <typename Entry>
constexpr DecodeKernels KernelsOf(const char* name) {
  return {name,
          Entry::MatMulFF,
          Entry::MatMulBB,
          Entry::MatMulBF,
          Entry::StraightF,
          Entry::StraightB,
          Entry::AttendF,
          Entry::AttendB};
}

constexpr DecodeKernels kAll[] = {
#ifdef KEEL_DECODE_X86
    KernelsOf<avx512_bf16::Entry>("avx512_bf16"),
    KernelsOf<avx512::Entry>("avx512"),
    KernelsOf<avx2::Entry>("avx2"),
#endif
    KernelsOf<baseline::Entry>("baseline"),
};

size_t FirstUsable() {
#ifdef KEEL_DECODE_X86
  if (__builtin_cpu_supports("x86-64-v4")) return __builtin_cpu_supports("avx512bf16") ? 0 : 1;
  return __builtin_cpu_supports("x86-64-v3") ? 2 : 3;
#else
  return 0;
#endif
}

const DecodeKernels& Kernels() {
  static const DecodeKernels& first = UsableDecodeKernels().front();
  return first;
}

}  // namespace

std::span<const DecodeKernels> UsableDecodeKernels() {
  return std::span(kAll).subspan(FirstUsable());
}

template <>
void MatMulTransposed(const float* x, int64_t m, int64_t k, const float* w, const float* bias,
                      int64_t n, int64_t n_begin, int64_t n_end, float* out) {
  Kernels().mat_mul_f32(x, m, k, w, bias, n, n_begin, n_end, out);
}
template <>
void MatMulTransposed(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w,
                      const uint16_t* bias, int64_t n, int64_t n_begin, int64_t n_end,
                      uint16_t* out) {
  Kernels().mat_mul_bf16(x, m, k, w, bias, n, n_begin, n_end, out);
}
template <>
void MatMulTransposed(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w,
                      const uint16_t* bias, int64_t n, int64_t n_begin, int64_t n_end, float* out) {
  Kernels().mat_mul_bf16_f32(x, m, k, w, bias, n, n_begin, n_end, out);
}

template <>
void MatMul(const float* x, int64_t m, int64_t k, const float* w, int64_t n, int64_t n_begin,
            int64_t n_end, float* out) {
  Kernels().straight_f32(x, m, k, w, n, n_begin, n_end, out);
}
template <>
void MatMul(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w, int64_t n, int64_t n_begin,
            int64_t n_end, uint16_t* out) {
  Kernels().straight_bf16(x, m, k, w, n, n_begin, n_end, out);
}

template <>
void AttendPaged(const PagedHead<float>& head, const float* q, int64_t q_stride, int64_t heads,
                 int64_t tokens, int64_t past, const PagedScores& scores, float* out,
                 int64_t out_stride, float* scratch) {
  Kernels().attend_f32(head, q, q_stride, heads, tokens, past, scores, out, out_stride, scratch);
}
template <>
void AttendPaged(const PagedHead<uint16_t>& head, const uint16_t* q, int64_t q_stride,
                 int64_t heads, int64_t tokens, int64_t past, const PagedScores& scores,
                 uint16_t* out, int64_t out_stride, float* scratch) {
  Kernels().attend_bf16(head, q, q_stride, heads, tokens, past, scores, out, out_stride, scratch);
}

int64_t AttentionScratch(int64_t positions) { return (positions + 15) / 16 * 16; }

}  // namespace keel::kernels
