// PrometheusFile: the newest metrics of a run as a file for node exporter's textfile collector.
// Torch-free.
//
// Rank 0's; not thread-safe. The file is replaced by rename, so that a collector never reads a part
// of it. A state of it that cannot be written is counted and said, when that begins, when it is
// over and by Close(); the next one holds the metrics of all.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::trainer {

class PrometheusFile {
 public:
  // In a run's folder, where nothing else is asked for.
  static constexpr std::string_view kName = "metrics.prom";
  // What each such file begins with.
  static constexpr std::string_view kBegins = "# TYPE keel_";

  // `run`: the label by which this run is told from others. Nothing is written yet. `log` must
  // outlive this.
  PrometheusFile(std::string path, std::string run, Logger& log, const Clock& clock = SystemClock())
      : path_(std::move(path)), run_(std::move(run)), log_(&log), clock_(&clock) {}

  // Metrics of `step`; those of earlier steps that are not among them stay as they were. The file
  // is replaced once a second at most: collectors look less often.
  void Write(int64_t step, std::span<const std::pair<std::string, double>> metrics);
  // At the end: writes the newest metrics, unless they are there, and says how often the file could
  // not be written, if ever. May be called again.
  void Close();

  // keel_<name>, with _ for what Prometheus does not take: "grad_norm" -> "keel_grad_norm",
  // "mfu(%)" -> "keel_mfu_".
  static std::string MetricName(std::string_view name);

 private:
  // The name of a metric in the file, of its own even where two become the same.
  const std::string& NameFor(const std::string& metric);
  void Publish();

  const std::string path_, run_;
  Logger* const log_;
  const Clock* const clock_;
  std::map<std::string, std::string> names_;  // by metric
  std::map<std::string, double> values_;      // by name
  int64_t step_ = 0;
  bool pending_ = false;                               // metrics that are not in the file
  std::optional<std::chrono::nanoseconds> published_;  // when it was tried last
  int64_t writes_ = 0, lost_ = 0, lost_in_row_ = 0;
  std::string because_;
};

}  // namespace keel::trainer
