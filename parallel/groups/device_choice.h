// DeviceChoice: on what the ranks of a job compute: each on a GPU of its own, or all on their
// hosts.
//
// A rank that finds no GPU does not take the host by itself: its peers would wait for it on another
// transport. Each says what it has, and all draw the same conclusion from what all have said.
#pragma once

#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "parallel/groups/cuda_module.h"

namespace keel::parallel {

// What a rank could compute on besides its host.
struct DeviceOffer {
  int index = -1;    // of its GPU among those that the process sees; -1: it has none
  std::string gpu;   // that GPU's uuid, the same in every process that sees it
  std::string name;  // of its model
  std::string lack;  // why it has none

  std::string ToText() const;
  static Result<DeviceOffer> FromText(std::string_view text);
};

// The GPU of the rank `local_rank` of its host: that of its number; the only one there is, where a
// batch system shows each task its own; `wanted`, where one is named. `share`: by turns, where
// there are fewer than ranks.
DeviceOffer OfferOf(const CudaModule& module, int local_rank,
                    std::optional<int> wanted = std::nullopt, bool share = false);

struct DeviceChoice {
  bool cuda = false;
  std::string said;  // for the log: what it is, and why it is not a GPU where it might be one
};

// From every rank's offer, in rank order. `demanded`: the configuration asks for GPUs, so that
// hosts will not do: kUnavailable, with the ranks that lack one or share one, and why. `share`:
// they may.
Result<DeviceChoice> ChooseDevice(const std::vector<DeviceOffer>& offers, bool demanded,
                                  bool share = false);

}  // namespace keel::parallel
