// On what a benchmark's worker computes.
#pragma once

#include <ATen/ATen.h>

#include <string>

namespace keel::bench {

class BenchDevice {
 public:
  // "cpu", "cuda" or "cuda:N". Before the first tensor. Throws keel::Error where there is none.
  explicit BenchDevice(const std::string& wish);

  const at::Device& device() const { return device_; }
  bool is_cpu() const { return device_.is_cpu(); }
  // Until all is done that the device was given.
  void Wait() const;

 private:
  at::Device device_ = at::kCPU;
};

}  // namespace keel::bench
