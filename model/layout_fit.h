// Whether a model can be divided as a layout wants. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "model/hf_config.h"

namespace keel::model {

struct LayoutWish {
  int tp = 1;      // tensor-parallel ranks
  int stages = 1;  // of the pipeline
  // Without gradients ranks may hold the same key-value head: `tp` may be a multiple of these.
  bool forward_only = false;
};

// Everything that does not divide, as sentences that name the keys; empty when the model fits.
std::vector<std::string> LayoutProblems(const HfConfig& config, const LayoutWish& wish);

}  // namespace keel::model
