// Kernels of generation on host memory: products with a weight matrix for few or many rows, and
// attention over paged keys and values. Torch-free, one thread each; callers split the work.
//
// T is float or uint16_t (bfloat16 bits); sums are fp32. Chosen at run time: AVX-512 with bf16
// instructions, AVX-512, AVX2, or the baseline. An element of the result is always the same sum in
// the same order: it depends on the instruction set and on its own inputs, never on how many rows,
// columns, tokens or sequences are computed beside it. Generation that does not depend on its
// batch rests on this.
#pragma once

#include <cstdint>
#include <span>

namespace keel::kernels {

// out[i, j] = x[i, :] . w[j, :] (+ bias[j]) for rows [0, m) of x and rows [n_begin, n_end) of w;
// x [m, k] and w [n, k] contiguous, out [m, n]. bias may be null. Out is float, or T with rounding
// to nearest even.
template <typename T, typename Out>
void MatMulTransposed(const T* x, int64_t m, int64_t k, const T* w, const T* bias, int64_t n,
                      int64_t n_begin, int64_t n_end, Out* out);

// out[i, j] = x[i, :] . w[:, j] for w [k, n], whose rows are contiguous: the same, of a matrix that
// is stored the other way.
template <typename T>
void MatMul(const T* x, int64_t m, int64_t k, const T* w, int64_t n, int64_t n_begin, int64_t n_end,
            T* out);

// One key/value head of one sequence in paged storage: position p is row p % block_size of the
// head in block blocks[p / block_size].
template <typename T>
struct PagedHead {
  const T* keys = nullptr;  // of the head in block 0, [block_size, d]
  const T* values = nullptr;
  int64_t block_stride = 0;  // elements from a block to the next
  const int32_t* blocks = nullptr;
  int64_t block_size = 0;
  int64_t d = 0;  // head_dim
};

// How scores are made of q k^T: times `scale`, and with a softcap softcap * tanh(score / softcap).
// With a window a token sees the last so many tokens, itself among them; 0: all before it. With
// sinks each head has one more score, which has no value.
struct PagedScores {
  float scale = 1;
  float softcap = 0;
  int64_t window = 0;
  const float* sinks = nullptr;  // of the query heads that share the key/value head
};

// softmax(scores) v for `tokens` neighbouring query tokens at positions past, past + 1, ...,
// each with `heads` query heads that share this key/value head; causal. q and out: head h of token
// t at t * stride + h * d. `scratch`: AttentionScratch floats.
template <typename T>
void AttendPaged(const PagedHead<T>& head, const T* q, int64_t q_stride, int64_t heads,
                 int64_t tokens, int64_t past, const PagedScores& scores, T* out,
                 int64_t out_stride, float* scratch);
int64_t AttentionScratch(int64_t positions);

// One instruction set's kernels; the functions above call the first usable one's.
struct DecodeKernels {
  const char* name;  // "avx512_bf16", "avx512", "avx2" or "baseline"
  void (*mat_mul_f32)(const float* x, int64_t m, int64_t k, const float* w, const float* bias,
                      int64_t n, int64_t n_begin, int64_t n_end, float* out);
  void (*mat_mul_bf16)(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w,
                       const uint16_t* bias, int64_t n, int64_t n_begin, int64_t n_end,
                       uint16_t* out);
  void (*mat_mul_bf16_f32)(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w,
                           const uint16_t* bias, int64_t n, int64_t n_begin, int64_t n_end,
                           float* out);
  void (*straight_f32)(const float* x, int64_t m, int64_t k, const float* w, int64_t n,
                       int64_t n_begin, int64_t n_end, float* out);
  void (*straight_bf16)(const uint16_t* x, int64_t m, int64_t k, const uint16_t* w, int64_t n,
                        int64_t n_begin, int64_t n_end, uint16_t* out);
  void (*attend_f32)(const PagedHead<float>& head, const float* q, int64_t q_stride, int64_t heads,
                     int64_t tokens, int64_t past, const PagedScores& scores, float* out,
                     int64_t out_stride, float* scratch);
  void (*attend_bf16)(const PagedHead<uint16_t>& head, const uint16_t* q, int64_t q_stride,
                      int64_t heads, int64_t tokens, int64_t past, const PagedScores& scores,
                      uint16_t* out, int64_t out_stride, float* scratch);
};
std::span<const DecodeKernels> UsableDecodeKernels();  // the fastest first

}  // namespace keel::kernels
