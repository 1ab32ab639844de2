#include "trainer/metrics/metrics_sink.h"

#include <fmt/format.h>

#include <algorithm>

namespace keel::trainer {

std::string StepProgress::StepText() const {
  return fmt::format("step {:>{}}/{}", step, std::to_string(total_steps).size(), total_steps);
}

std::string StepProgress::EtaText() const {
  const auto s = static_cast<int64_t>(std::max(0.0, eta_s));
  return fmt::format("{}:{:02}:{:02}", s / 3600, s / 60 % 60, s % 60);
}

std::string StepProgress::SkippedText() const {
  return skipped ? "  SKIPPED: loss or norm not finite" : "";
}

}  // namespace keel::trainer
