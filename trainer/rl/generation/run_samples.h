// Which samples an RL run trains on. Torch-free.
#pragma once

#include <cstdint>
#include <functional>

#include "trainer/data/prompt_data.h"

namespace keel::trainer::rl {

// Positions from here on are those of validations.
inline constexpr int64_t kValidationPositions = int64_t{1} << 62;

// The prompt at a position of the run.
using PromptAt = std::function<Prompt(int64_t position)>;

// From the step on with which a run begins.
struct RunSamples {
  int64_t first = 0;                   // position
  int64_t end = kValidationPositions;  // no step takes positions from here on
  int64_t batch = 1;                   // positions that a step takes at a time
  int64_t n = 1;
  bool greedy_baseline = false;
  bool texts = false;
};

}  // namespace keel::trainer::rl
