// MetricsWriter: what a run tells of itself: metrics.jsonl (metrics_file.h), TensorBoard's events
// (event_file.h), a file for Prometheus (prometheus_file.h) and the console. Torch-free.
//
// Rank 0's; not thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "trainer/metrics/metrics_file.h"
#include "trainer/metrics/metrics_sink.h"
#include "trainer/metrics/run_summary.h"

namespace keel::trainer {

class EventFile;
class PrometheusFile;

struct MetricsOptions {
  bool jsonl = true;
  bool console = true;
  int64_t log_freq = 1;  // steps from one line on the console to the next
  bool tensorboard = false;
  std::string tensorboard_dir = {};  // also where it is off: what is there is kept true
  std::optional<std::string> prometheus_file = {};  // none: no such file
};

class MetricsWriter final : public MetricsSink {
 public:
  MetricsWriter(MetricsWriter&&) noexcept;
  ~MetricsWriter() override;
  // In the run's folder. Logs that are there are made to tell of this run alone (MetricsHistory),
  // also those that it does not go on with. `log` must outlive this.
  static Result<MetricsWriter> Open(const std::string& directory, const RunStart& start,
                                    const MetricsOptions& options, Logger& log);

  // On the console every log_freq steps, at the first and the last.
  void Step(const StepLine& line, const StepProgress& progress, ConsoleText* text) override;
  void Validation(int64_t step, const StepLine& line, const std::string& text) override;
  // Of a save or a load.
  void Record(int64_t step, Json data) { Write(step, std::move(data), {}); }
  // For TensorBoard alone.
  void Histogram(int64_t step, std::string_view name, std::span<const double> values) override;
  void Text(int64_t step, std::string_view name, std::string_view markdown) override;
  // What this start came to so far.
  RunSummary& summary() { return summary_; }
  // The summary, where the run has a console.
  void TellSummary(const RunPlaces& places);
  // The run ends: how much could not be written, if anything.
  void Close();

 private:
  MetricsWriter(const MetricsOptions& options, int64_t resumed_step, Logger& log);
  // See MetricsFile::Write.
  void Write(int64_t step, Json data, std::optional<int64_t> total_steps);

  std::optional<MetricsFile> file_;
  std::unique_ptr<EventFile> events_;
  std::unique_ptr<PrometheusFile> prometheus_;
  MetricsOptions options_;
  RunSummary summary_;
  Logger* log_;
};

}  // namespace keel::trainer
