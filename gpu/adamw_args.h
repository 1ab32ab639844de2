// The optimizer over flat buffers.
#pragma once

#include <cstdint>

namespace keel::gpu {

// One AdamW step over n elements, as kernels::AdamW of common/kernels/cpu_kernels.h, with its
// scalars: 30 bytes of memory traffic an element. weight (bfloat16 bits) may be null.
struct AdamW {
  int64_t n = 0;
  float beta1_rest = 1;             // 1 - beta1
  float beta2 = 0, beta2_rest = 1;  // 1 - beta2
  float eps = 0;
  float kept = 1;                   // 1 - lr * weight_decay
  float step_size = 0;              // lr / (1 - beta1^t)
  float bias_correction2_sqrt = 1;  // sqrt(1 - beta2^t)
  float gradient_scale = 1;         // of clipping
  const float* gradient = nullptr;
  float* master = nullptr;
  float* exp_avg = nullptr;
  float* exp_avg_sq = nullptr;
  uint16_t* weight = nullptr;
};

// partial[i], the sum of squares of elements [i * kSumPiece, (i + 1) * kSumPiece) in fp64.
inline constexpr int64_t kSumPiece = 1 << 15;
inline int64_t SumPieces(int64_t n) { return (n + kSumPiece - 1) / kSumPiece; }
struct SumOfSquares {
  int64_t n = 0;
  const float* x = nullptr;
  double* partial = nullptr;  // [SumPieces(n)]
};

}  // namespace keel::gpu
