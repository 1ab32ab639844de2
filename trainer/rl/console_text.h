// The line of a step on the console, for DPO and RL, made from that of its metrics. Torch-free.
#pragma once

#include <cstdint>
#include <string>

#include "trainer/metrics/metrics_writer.h"

namespace keel::trainer::rl {

ConsoleText DpoText;
ConsoleText RlText;

// Samples without a score, "errors 3/64"; "" when all have one.
std::string ErrorsText(int64_t errors, int64_t samples);

}  // namespace keel::trainer::rl
