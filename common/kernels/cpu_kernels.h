// Row and element kernels on host memory: torch-free, one thread each, vectorised for AVX-512, AVX2
// or the baseline, chosen when the program is loaded.
//
// T is float or uint16_t (bfloat16 bits); arithmetic is fp32. Callers split rows over threads.
// Results depend on the instruction set, never on how rows are split into calls; a sum over rows
// (weight_gradient) is in the order of the rows.
#pragma once

#include <cstdint>

namespace keel::kernels {

struct NormScalars {
  float eps = 0;
  float offset = 0;
};
// out = x / rms(x) * (offset + weight) per row of n (Zhang & Sennrich 2019), eps added to the mean
// of squares. Rows start `x_stride` apart.
// rstd [rows] receives 1 / rms. out may be x.
template <typename T>
void RmsNorm(const T* x, int64_t x_stride, const T* weight, const NormScalars& scalars,
             int64_t rows, int64_t n, T* out, int64_t out_stride, float* rstd);

// dx from dy; adds to weight_gradient [n]. dx may be dy.
template <typename T>
void RmsNormBackward(const T* dy, int64_t dy_stride, const T* x, int64_t x_stride, const T* weight,
                     float offset, const float* rstd, int64_t rows, int64_t n, T* dx,
                     int64_t dx_stride, float* weight_gradient);

// out[i] = f(gate[i]) * up[i]; a row of gate_up is [gate n | up n]. kGeluTanh: x/2 (1 + tanh(u)),
// u = sqrt(2/pi) (x + 0.044715 x^3).
enum class Gate { kSilu, kGeluTanh };
template <typename T>
void GatedUnit(Gate gate, const T* gate_up, int64_t rows, int64_t n, T* out);
template <typename T>
void GatedUnitBackward(Gate gate, const T* dout, const T* gate_up, int64_t rows, int64_t n,
                       T* dgate_up);

// out[i] = x[i] * sigmoid(gate[i]).
template <typename T>
void SigmoidGate(const T* x, const T* gate, int64_t n, T* out);
template <typename T>
void SigmoidGateBackward(const T* dout, const T* x, const T* gate, int64_t n, T* dx, T* dgate);

// Heads that stand one after another, of which the first `rotated` dims turn.
struct RopeHeads {
  int64_t heads = 0;
  int64_t d = 0;
  int64_t rotated = 0;       // even, at most d
  bool interleaved = false;  // dim 2i turns with 2i + 1, in place of i with i + rotated / 2
};
// Rotates in place. cosine and sine are
// [positions, rotated / 2]. direction +1 forward, -1 for the gradient.
template <typename T>
void Rope(T* x, int64_t row_stride, int64_t rows, const RopeHeads& heads, const int32_t* positions,
          const float* cosine, const float* sine, float direction);

// Over the first `columns` of each row: the maximum, sum(exp(x - maximum)), and x[target] (or 0
// when target is outside [0, columns)). statistics [rows, 3].
template <typename T>
void SoftmaxStatistics(const T* logits, int64_t row_stride, int64_t rows, int64_t columns,
                       const int64_t* targets, float* statistics);
// What a row's softmax over the whole vocabulary is made of: p(x) = exp((x - maximum) - log_sum).
// The two are apart because their sum, at a maximum of 128, is rounded to multiples of 1.5e-5,
// which is more than the log p of a token that is all but certain.
struct RowSoftmax {
  const float* maximum;  // [rows]
  const float* log_sum;  // [rows], the logarithm of the sum of exp(x - maximum)
};
// In place: row -> weight[row] * (p(x) - [column == target]); columns past `columns` up to
// row_stride become 0.
template <typename T>
void SoftmaxGradient(T* logits, int64_t row_stride, int64_t rows, int64_t columns,
                     const int64_t* targets, const RowSoftmax& softmax, const float* weight);

// out[i] = exp((x[i] - largest) * scale), 0 where that is below the smallest normal number. Returns
// their sum.
float ExpDistance(const float* x, int64_t n, float largest, float scale, float* out);

// The statistics of softmax(logits / temperature), with y = (x - maximum) / temperature, which
// loses no digit of the logits' distances: the maximum, sum(exp(y)), x[target] (or 0), and with
// `entropy` also sum(exp(y) * y), else 0. statistics [rows, 4].
template <typename T>
void TokenStatistics(const T* logits, int64_t row_stride, int64_t rows, int64_t columns,
                     const int64_t* targets, float temperature, bool entropy, float* statistics);
// In place: row -> gradient with respect to the logits of
// log_prob_gradient[row] * log p(target) + entropy_gradient[row] * entropy, for
// p = softmax(logits / temperature), whose log_sum is that of exp(y), and the row's entropy.
template <typename T>
void TokenStatisticsGradient(T* logits, int64_t row_stride, int64_t rows, int64_t columns,
                             const int64_t* targets, float temperature, const RowSoftmax& softmax,
                             const float* entropy, const float* log_prob_gradient,
                             const float* entropy_gradient);

struct AdamWStep {
  double lr, beta1, beta2, eps, weight_decay;
  int64_t t;              // from 1 on
  double gradient_scale;  // of clipping
};
// What a step multiplies by, each rounded once: 1 - 0.999f is 1e-5 of itself off.
struct AdamWScalars {
  explicit AdamWScalars(const AdamWStep& step);

  float beta1_rest;         // 1 - beta1
  float beta2, beta2_rest;  // 1 - beta2
  float eps;
  float kept;                   // 1 - lr * weight_decay
  float step_size;              // lr / (1 - beta1^t)
  float bias_correction2_sqrt;  // sqrt(1 - beta2^t)
  float gradient_scale;
};
// One AdamW step (Loshchilov & Hutter 2019, decoupled decay, as torch.optim.AdamW) over n elements.
// `weight` (bf16 bits) receives the rounded master; null when the master is the weight.
void AdamW(const AdamWScalars& s, int64_t n, const float* gradient, float* master, float* exp_avg,
           float* exp_avg_sq, uint16_t* weight);

// Sum of squares in fp64.
double SumOfSquares(const float* x, int64_t n);

}  // namespace keel::kernels
