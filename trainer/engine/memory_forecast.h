// What a run's state will take of memory, before any of it is taken: a run that cannot fit is told
// so in words at its start, not by the kernel or by a failed allocation later. Torch-free.
#pragma once

#include <cstdint>
#include <string>
#include <vector>

#include "common/memory/host_memory.h"
#include "common/status.h"
#include "model/config/hf_config.h"
#include "trainer/config/config.h"

namespace keel::trainer {

// Bytes of the rank that holds most, by purpose. Activations are not in it: they depend on the
// data. Doubles, since a configuration may ask for more than any integer holds.
struct MemoryForecast {
  struct Part {
    std::string name;  // "weights", "optimizer state"
    double bytes = 0;
    bool on_device = false;  // where there is a GPU: its memory, not the host's
  };
  std::vector<Part> parts;

  double HostBytes(bool gpu) const;
  std::string ToString() const;  // "weights 512 MiB, gradients 1.0 GiB, ..."
};

// The forecast of training as `config` says, on `world` ranks.
MemoryForecast ForecastTraining(const Config& config, const model::HfConfig& model, int world);
// The forecast of generating or scoring in one process.
MemoryForecast ForecastInference(const model::HfConfig& model, double bytes_per_weight,
                                 double kv_cache_bytes);

// kExhausted where `ranks` such ranks of a node, or one in its own address space, can not fit; says
// what takes how much, and what to change. A text to warn with where they fit only if other
// programs give memory back; else "".
Result<std::string> CheckMemory(const MemoryForecast& forecast, const HostMemory& memory, int ranks,
                                bool gpu);

}  // namespace keel::trainer
