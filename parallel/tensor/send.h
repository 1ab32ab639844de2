// Numbers of the host for a device that is not waited for.
#pragma once

#include <ATen/ATen.h>

namespace keel::parallel {

// `host` on the device, ordered after what the current stream was given before. The host does not
// wait, as it would with Tensor::to, until the device has done all of that; `host`, which is not
// pinned, has been read when this returns. On a host: `host` itself.
inline at::Tensor SentTo(at::Device device, const at::Tensor& host) {
  return host.to(device, host.scalar_type(), /*non_blocking=*/true);
}

}  // namespace keel::parallel
