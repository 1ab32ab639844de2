#include "model/ops/clamped_unit.h"

#include <ATen/Parallel.h>

#include <cmath>

#include "parallel/tensor/host_kernels.h"

namespace keel::model {

namespace {

// In fp32: ATen's operations on other devices, and the loops below on the host, where ATen's give
// the last elements of an array other bits than the same ones in its middle.
struct Halves {
  at::Tensor gate, up;  // as they are
  at::Tensor g, u;      // and within the limits
};

Halves HalvesOf(const at::Tensor& gate_up, const ClampedGate& gate) {
  const at::Tensor pairs = gate_up.view({gate_up.size(0), gate_up.size(1) / 2, 2}).to(at::kFloat);
  Halves halves = {pairs.select(2, 0), pairs.select(2, 1), {}, {}};
  halves.g = halves.gate.clamp_max(gate.limit);
  halves.u = halves.up.clamp(-gate.limit, gate.limit);
  return halves;
}

struct Pair {
  float gate, up;
};

Pair Within(float limit, const Pair& x) {  // NaN stays
  return {x.gate > limit ? limit : x.gate, x.up > limit ? limit : x.up < -limit ? -limit : x.up};
}

float Sigmoid(float x) { return 1.0f / (1.0f + std::exp(-x)); }

// For all pairs of a tensor: run(index of the pair).
template <typename Run>
void ForAllPairs(const at::Tensor& gate_up, const Run& run) {
  at::parallel_for(0, gate_up.numel() / 2, 4096, [&](int64_t begin, int64_t end) {
    for (int64_t i = begin; i < end; ++i) run(i);
  });
}

}  // namespace

at::Tensor ClampedUnit(const at::Tensor& gate_up, const ClampedGate& gate) {
  if (!parallel::ByHostKernels(gate_up)) {
    const Halves x = HalvesOf(gate_up, gate);
    return (x.g * at::sigmoid(x.g * gate.alpha) * (x.u + 1)).to(gate_up.scalar_type());
  }
  at::Tensor out = at::empty({gate_up.size(0), gate_up.size(1) / 2}, at::kFloat);
  const at::Tensor in = gate_up.to(at::kFloat).contiguous();
  const auto* const pairs = reinterpret_cast<const Pair*>(in.const_data_ptr<float>());
  auto* const results = out.data_ptr<float>();
  const auto alpha = static_cast<float>(gate.alpha);
  const auto limit = static_cast<float>(gate.limit);
  ForAllPairs(in, [&](int64_t i) {
    const Pair x = Within(limit, pairs[i]);
    results[i] = x.gate * Sigmoid(alpha * x.gate) * (x.up + 1.0f);
  });
  return out.to(gate_up.scalar_type());
}

at::Tensor ClampedUnitGradient(const at::Tensor& dout, const at::Tensor& gate_up,
                               const ClampedGate& gate) {
  const Halves x = HalvesOf(gate_up, gate);
  const at::Tensor d = dout.to(at::kFloat);
  const at::Tensor s = at::sigmoid(x.g * gate.alpha);
  // What was cut has no gradient; what lies on a limit has.
  const at::Tensor dgate =
      d * (x.u + 1) * s * (1 + gate.alpha * x.g * (1 - s)) * x.gate.le(gate.limit);
  const at::Tensor dup = d * x.g * s * x.up.abs().le(gate.limit);
  return at::stack({dgate, dup}, 2).view(gate_up.sizes()).to(gate_up.scalar_type());
}

}  // namespace keel::model
