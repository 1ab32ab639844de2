// MetricsWriter: what a run tells of itself: metrics.jsonl (metrics_file.h) and the console.
// Torch-free.
//
// Rank 0's; not thread-safe.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "trainer/metrics/metrics_file.h"
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
using ConsoleText = std::string(const StepLine& line, const StepProgress& progress);
ConsoleText LmText;

struct MetricsOptions {
  bool jsonl = true;
  bool console = true;
  int64_t log_freq = 1;  // steps from one line on the console to the next
};

class MetricsWriter {
 public:
  // As MetricsFile::Open. `log` must outlive this.
  static Result<MetricsWriter> Open(const std::string& directory, int64_t resumed_step,
                                    const MetricsOptions& options, Logger& log);

  // A step's line, and `text` of it every log_freq steps, at the first and the last.
  void Step(const StepLine& line, const StepProgress& progress, ConsoleText* text);
  // That of a validation after `step`, and what the console says of it.
  void Validation(int64_t step, const StepLine& line, const std::string& text);
  // Of a save or a load.
  void Record(int64_t step, Json data);
  // The run ends: how many lines could not be written, if any.
  void Close() {
    if (file_) file_->Close();
  }

 private:
  MetricsWriter(std::optional<MetricsFile> file, const MetricsOptions& options, Logger& log)
      : file_(std::move(file)), options_(options), log_(&log) {}

  std::optional<MetricsFile> file_;
  MetricsOptions options_;
  Logger* log_;
};

}  // namespace keel::trainer
