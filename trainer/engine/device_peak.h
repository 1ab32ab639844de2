// What a GPU could do at most, which model FLOPs utilization (MFU) is a share of. Pure, torch-free.
#pragma once

#include <optional>
#include <string_view>

namespace keel::trainer {

// Dense bf16 operations per second of one device, by the name that its driver gives, from its
// maker's data sheet; nothing for a device that is not known here.
std::optional<double> PeakBf16Flops(std::string_view device_name);

}  // namespace keel::trainer
