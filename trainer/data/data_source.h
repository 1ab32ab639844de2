// DataSource: what a run learns from beside others, and how much of it; data.sources.
#pragma once

#include <string>

namespace keel::trainer {

struct DataSource {
  std::string path;   // a file or folder, as OpenTokens takes it (token_input.h)
  double weight = 1;  // its share of the samples is this over the sum of all weights
};

}  // namespace keel::trainer
