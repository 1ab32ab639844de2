#include "trainer/engine/device_peak.h"

namespace keel::trainer {

namespace {

struct Known {
  std::string_view name;  // part of the driver's
  double teraflops;       // without sparsity
};

// The first that fits: variants stand before what they are variants of.
constexpr Known kDevices[] = {
    {"B200", 2250},       {"H200 NVL", 836}, {"H200", 989.4}, {"H100 PCIe", 756},
    {"H100 NVL", 835},    {"H100", 989.4},   {"H800", 989.4}, {"H20", 148},
    {"A100", 312},        {"A800", 312},     {"A40", 149.7},  {"A30", 165},
    {"RTX A6000", 154.8}, {"L40S", 362},     {"L40", 181},    {"L4", 121},
    {"RTX 4090", 165.2},  {"RTX 3090", 71},
};

}  // namespace

std::optional<double> PeakBf16Flops(std::string_view device_name) {
  for (const Known& known : kDevices) {
    const size_t at = device_name.find(known.name);
    if (at == std::string_view::npos) continue;
    // "L4" is not in "L40", nor "RTX 3090" in "RTX 3090 Ti".
    const std::string_view rest = device_name.substr(at + known.name.size());
    const bool whole = rest.empty() || rest.front() == ' ' || rest.front() == '-';
    if (whole && !rest.starts_with(" Ti") && !rest.starts_with(" Laptop") &&
        !rest.starts_with(" D"))
      return known.teraflops * 1e12;
  }
  return std::nullopt;
}

}  // namespace keel::trainer
