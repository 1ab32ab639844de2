// MetricsSink: where a task tells of its steps. MetricsWriter is the one of a run; a test may have
// its own. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "trainer/metrics/console_line.h"
#include "trainer/metrics/step_line.h"

namespace keel::trainer {

// Where the run is when a step is over, which is in no metric.
struct StepProgress {
  int64_t step = 0;
  int64_t total_steps = 0;
  double eta_s = 0;
  bool skipped = false;  // an update changed nothing: loss or norm was not finite

  std::string StepText() const;     // "step  7/12", as wide in every step
  std::string EtaText() const;      // "1:02:03"
  std::string SkippedText() const;  // "" where nothing was
};

// A task's line on the console, made from that of its metrics.
using ConsoleText = ConsoleLine(const StepLine& line, const StepProgress& progress);
std::string TokensPerSecondText(double rate);  // "tok/s 1,234,567", as wide in every step
ConsoleText LmText;                            // of pre-training and SFT

class MetricsSink {
 public:
  virtual ~MetricsSink() = default;

  // A step's line, and `text` of it for the console.
  virtual void Step(const StepLine& line, const StepProgress& progress, ConsoleText* text) = 0;
  // That of a validation after `step`, and what the console says of it.
  virtual void Validation(int64_t step, const StepLine& line, const std::string& text) = 0;
  // What no line can hold.
  virtual void Histogram(int64_t step, std::string_view name, std::span<const double> values) = 0;
  virtual void Text(int64_t step, std::string_view name, std::string_view markdown) = 0;
};

}  // namespace keel::trainer
