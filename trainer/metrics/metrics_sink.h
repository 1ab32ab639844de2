// MetricsSink: where a task tells of its steps. MetricsWriter is the one of a run; a test may have
// its own. Torch-free.
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <vector>

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

// A figure of a step's line on the console. The lower its order, the longer it stays where a
// terminal is narrow (console_line.h). What is kKept stays always: where the run is, what it is
// judged by, rate, tokens and time of a step, and what went wrong.
inline constexpr int kKept = 0;

struct ConsoleField {
  std::string text;  // empty: nothing to say in this step
  int order = kKept;
};

using ConsoleLine = std::vector<ConsoleField>;

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
