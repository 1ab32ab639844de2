// Kernels of the gated delta rule (Yang et al. 2025, "Gated Delta Networks") on host memory: the
// recurrence of one key head over one text, its gradient, and the short convolution that stands
// before it. Torch-free, one thread each; callers split the work over heads, texts and channels.
//
// T is float or uint16_t (bfloat16 bits); sums are fp32. Chosen at run time: AVX-512, AVX2 or the
// baseline. What is computed of a token is always the same sums in the same order: it depends on
// the instruction set, on the token and on the state before it, never on how a text is cut into
// calls. So generation, token by token, has the bits of a training's forward.
#pragma once

#include <cstdint>
#include <span>

namespace keel::kernels {

// A key head of a text and the value heads that it serves. Of each token, `stride` elements apart:
// q and k [key_dim], v [value_heads, value_dim]. log_decay and beta [value_heads], `gate_stride`
// apart.
//
// With q' = q / sqrt((q . q + 1e-6) key_dim) and k' = k / sqrt(k . k + 1e-6), each value head has a
// state S [key_dim, value_dim], which a token changes: S = exp(log_decay) S, then
// S = S + k' (beta (v - k' S)). Its result is q' S.
template <typename T>
struct DeltaText {
  const T* q = nullptr;
  const T* k = nullptr;
  const T* v = nullptr;
  int64_t stride = 0;
  const float* log_decay = nullptr;
  const float* beta = nullptr;
  int64_t gate_stride = 0;
  int64_t tokens = 0;
  int64_t key_dim = 0;
  int64_t value_heads = 0;
  int64_t value_dim = 0;
};

// states [value_heads, key_dim, value_dim]: before the first token, and after the last. out: of
// each token [value_heads, value_dim], `out_stride` apart. `scratch`: DeltaScratch floats.
template <typename T>
void DeltaRule(const DeltaText<T>& text, float* states, T* out, int64_t out_stride, float* scratch);
int64_t DeltaScratch(int64_t key_dim);

// The gradients of what has the gradient dout (laid out as out), for states that began as zeros.
// dq, dk and dv are laid out as q, k and v; dlog_decay and dbeta as log_decay and beta. All are
// written. `scratch`: DeltaGradientScratch floats.
template <typename T>
struct DeltaGradients {
  T* dq = nullptr;
  T* dk = nullptr;
  T* dv = nullptr;
  float* dlog_decay = nullptr;
  float* dbeta = nullptr;
};
template <typename T>
void DeltaRuleGradient(const DeltaText<T>& text, const T* dout, int64_t dout_stride,
                       const DeltaGradients<T>& gradients, float* scratch);
int64_t DeltaGradientScratch(int64_t tokens, int64_t key_dim);

// out[t, c] = silu(sum over i < taps of weight[i, c] x[t + i, c]) for `tokens` tokens: x has taps -
// 1 rows more than there are tokens, those before the first. Rows of x and of out `x_stride` and
// `out_stride` apart; weight [taps, channels] fp32.
template <typename T>
void ConvolveSilu(const T* x, int64_t x_stride, int64_t tokens, int64_t channels,
                  const float* weight, int64_t taps, T* out, int64_t out_stride);

// dx [tokens, channels], of the tokens alone, `dx_stride` apart, of what has the gradient dout;
// adds to dweight [taps, channels] in the order of the tokens. `scratch`: (tokens + taps - 1) *
// channels floats.
template <typename T>
void ConvolveSiluGradient(const T* x, int64_t x_stride, const T* dout, int64_t dout_stride,
                          int64_t tokens, int64_t channels, const float* weight, int64_t taps,
                          T* dx, int64_t dx_stride, float* dweight, float* scratch);

// One instruction set's kernels; the functions above call the first usable one's.
template <typename T>
struct DeltaKernelsOf {
  void (*rule)(const DeltaText<T>& text, float* states, T* out, int64_t out_stride, float* scratch);
  void (*rule_gradient)(const DeltaText<T>& text, const T* dout, int64_t dout_stride,
                        const DeltaGradients<T>& gradients, float* scratch);
  void (*convolve)(const T* x, int64_t x_stride, int64_t tokens, int64_t channels,
                   const float* weight, int64_t taps, T* out, int64_t out_stride);
  void (*convolve_gradient)(const T* x, int64_t x_stride, const T* dout, int64_t dout_stride,
                            int64_t tokens, int64_t channels, const float* weight, int64_t taps,
                            T* dx, int64_t dx_stride, float* dweight, float* scratch);
};
struct DeltaKernels {
  const char* name;  // "avx512", "avx2" or "baseline"
  DeltaKernelsOf<float> fp32;
  DeltaKernelsOf<uint16_t> bf16;
};
std::span<const DeltaKernels> UsableDeltaKernels();  // the fastest first

}  // namespace keel::kernels
