// Whether a model can be divided as a layout wants. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "model/config/hf_config.h"

namespace keel::model {

struct LayoutWish {
  int tp = 1;      // tensor-parallel ranks
  int stages = 1;  // of the pipeline
};

// Everything of which some rank would get nothing, as sentences that name the keys and what fits;
// empty when the model fits. Nothing has to divide: see model/config/head_split.h.
std::vector<std::string> LayoutProblems(const HfConfig& config, const LayoutWish& wish);

}  // namespace keel::model
