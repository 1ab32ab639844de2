// The gated unit of gpt-oss's experts (OpenAI 2025): with g = min(gate, limit) and
// u = max(-limit, min(up, limit)) it is g sigmoid(alpha g) (u + 1). Gate and up alternate in a row.
#pragma once

#include <ATen/ATen.h>

namespace keel::model {

struct ClampedGate {
  double alpha = 1.702;
  double limit = 7;
};

// gate_up [rows, 2 F] -> [rows, F]. A row depends on itself alone, bit for bit. For functions
// without gradients; fp32 and bf16, computed in fp32.
at::Tensor ClampedUnit(const at::Tensor& gate_up, const ClampedGate& gate);
// The gradient by gate_up of what has the gradient dout [rows, F].
at::Tensor ClampedUnitGradient(const at::Tensor& dout, const at::Tensor& gate_up,
                               const ClampedGate& gate);

}  // namespace keel::model
