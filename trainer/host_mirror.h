// HostMirror: host copies of device tensors, for code that reads and writes host memory
// (checkpoints, imports).
//
// On a CPU a tensor is its own mirror and the copies are nothing. Used from the training thread.
#pragma once

#include <ATen/ATen.h>

#include <utility>
#include <vector>

namespace keel::trainer {

class HostMirror {
 public:
  // The host tensor that stands for `tensor`, made at first use and kept.
  at::Tensor Of(const at::Tensor& tensor) {
    if (tensor.is_cpu()) return tensor;
    for (const auto& [device, host] : pairs_) {
      if (device.data_ptr() == tensor.data_ptr() && device.sizes() == tensor.sizes()) return host;
    }
    pairs_.emplace_back(
        tensor, at::empty_like(tensor, tensor.options().device(at::kCPU).requires_grad(false)));
    return pairs_.back().second;
  }
  void CopyToHost() {
    const at::NoGradGuard no_grad;
    for (auto& [device, host] : pairs_) host.copy_(device);
  }
  void CopyToDevice() {
    const at::NoGradGuard no_grad;
    for (auto& [device, host] : pairs_) device.copy_(host);
  }

 private:
  std::vector<std::pair<at::Tensor, at::Tensor>> pairs_;  // device, host
};

}  // namespace keel::trainer
