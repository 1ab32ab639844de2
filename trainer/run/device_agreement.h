// On what the ranks of a job compute: asked of this machine, then agreed by all.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <optional>
#include <string>

#include "checkpoint/base/coordinator.h"
#include "common/status.h"
#include "parallel/groups/device_choice.h"
#include "trainer/config/choices.h"

namespace keel::trainer {

struct DeviceWish {
  DeviceKind kind = DeviceKind::kAuto;
  std::optional<int> index;  // that GPU and no other
  bool share = false;        // a GPU may be that of several ranks
};

// "auto", "cpu", "cuda" or "cuda:N". kUsage for anything else.
Result<DeviceWish> ParseDeviceWish(const std::string& text);

// What this rank could compute on, and the current device of the CUDA module from here on. The
// module costs memory and time: it is loaded only where it is asked for, or a driver is there. To
// be called before the first tensor. kUnavailable where a GPU is demanded and there is none.
Result<parallel::DeviceOffer> OfferHere(const DeviceWish& wish, int local_rank);

// The device of an offer by itself.
at::Device DeviceOf(const parallel::DeviceOffer& offer);

struct AgreedDevice {
  at::Device device = at::kCPU;
  std::string said;      // for the log
  bool refused = false;  // this rank has a GPU, and does not use it
};

// Collective over all ranks of the coordinator, once a job: the same kind of device on all.
Result<AgreedDevice> AgreeOnDevice(checkpoint::Coordinator& coordinator,
                                   const parallel::DeviceOffer& mine, const DeviceWish& wish,
                                   std::chrono::milliseconds deadline);

}  // namespace keel::trainer
