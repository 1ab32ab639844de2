// activation(gate) * up, and its gradient.
#pragma once

#include <cstdint>

#include "gpu/element.h"

namespace keel::gpu {

enum class Gate { kSilu, kGeluTanh };

// out [rows, n] of gate_up [rows, 2 n], gate first; both contiguous.
struct GatedUnit {
  Element element = Element::kF32;
  Gate gate = Gate::kSilu;
  int64_t rows = 0;
  int64_t n = 0;
  const void* gate_up = nullptr;
  void* out = nullptr;
};

// dgate_up may be gate_up.
struct GatedUnitBackward {
  Element element = Element::kF32;
  Gate gate = Gate::kSilu;
  int64_t rows = 0;
  int64_t n = 0;
  const void* dout = nullptr;
  const void* gate_up = nullptr;
  void* dgate_up = nullptr;
};

}  // namespace keel::gpu
