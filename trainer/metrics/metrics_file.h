// MetricsFile: metrics.jsonl in a run's folder, {"step": …, "data": {…}} a line. Torch-free.
//
// Rank 0's; not thread-safe. A line is there as a whole or not at all; one that cannot be written
// is counted and said (AppendFile).
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "common/files/file_system.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "trainer/metrics/append_file.h"
#include "trainer/metrics/metrics_history.h"

namespace keel::trainer {

class MetricsFile {
 public:
  // Behind the lines that are there (MetricsHistory::Apply). An error names the path. `log` must
  // outlive this.
  static Result<MetricsFile> Open(const FileSystem& fs, Logger& log);

  // Adds a line. JSON knows no numbers that are not finite: they become "nan", "inf" and "-inf".
  // `total_steps`: of the run, as far as is known; none where the line is not of a step.
  void Write(int64_t step, Json data, std::optional<int64_t> total_steps = {});
  // At the end: says how many lines were lost, if any were. May be called again.
  void Close() { file_.Close(); }

 private:
  MetricsFile(std::string path, Logger& log) : file_(std::move(path), "lines", log) {}

  AppendFile file_;
};

}  // namespace keel::trainer
