// What a weight's adapter is on this rank.
#pragma once

#include <optional>
#include <vector>

#include "model/config/hf_config.h"
#include "parallel/parameter.h"

namespace keel::model {

struct AdapterParameters {
  parallel::Parameter a, b;
  std::vector<parallel::Adapter::Run> runs;
};

// Of those canonical tensors of `weight` that config.adapter stands beside; none where it does
// beside none. Where the weight's output is split over TP, B is, and A is whole on every rank;
// where its input is split, A is, and B is whole. What is whole gets a part of its gradient on each
// rank.
std::optional<AdapterParameters> AdapterOf(const HfConfig& config,
                                           const parallel::Parameter& weight);

}  // namespace keel::model
