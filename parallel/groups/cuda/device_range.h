// DeviceRange by the driver's virtual memory management; part of keel_cuda, see cuda_module.h.
#pragma once

#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>

#include "common/status.h"
#include "parallel/groups/cuda_module.h"

namespace keel::parallel {

// Reserves addresses of device `index`; nothing is mapped. kUnavailable where the driver or the
// device knows no virtual memory management. `mapped` is told of each change of what this process
// has mapped, in bytes.
Result<std::unique_ptr<DeviceRange>> ReserveDeviceRange(int index, size_t bytes,
                                                        std::function<void(int64_t)> mapped);

}  // namespace keel::parallel
