// MetricsFile: metrics.jsonl in a run's folder, {"step": …, "data": {…}} a line. Torch-free.
//
// Rank 0's; not thread-safe. A line is there as a whole or not at all; one that cannot be written
// is counted and said (AppendFile).
#pragma once

#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "trainer/metrics/append_file.h"
#include "trainer/metrics/metrics_history.h"

namespace keel::trainer {

inline constexpr std::string_view kMetricsName = "metrics.jsonl";
// Lines that a resumed run did not take over, each as it was.
inline constexpr std::string_view kDroppedMetricsName = "metrics.dropped.jsonl";

class MetricsFile {
 public:
  // Goes on with what is there, so that each step stands once, and loses none of it:
  // - A run that begins anew (`start.step` 0) begins a file of its own; what is there gets the
  //   first name metrics.<n>.jsonl that is free.
  // - One that goes on has the lines that its checkpoint stands on: those up to its step, also
  // where
  //   starts after the checkpoint's save took them out (metrics_history.h). All others, and those
  //   that are no metrics, go to the end of kDroppedMetricsName.
  // What was done is logged. An error names the path. `log` must outlive this.
  static Result<MetricsFile> Open(const std::string& directory, const MetricsStart& start,
                                  Logger& log);

  // Adds a line. JSON knows no numbers that are not finite: they become "nan", "inf" and "-inf".
  void Write(int64_t step, Json data);
  // At the end: says how many lines were lost, if any were. May be called again.
  void Close() { file_.Close(); }
  // What Open brought back, in order: other logs do not have it any more.
  const std::vector<std::string>& restored() const { return restored_; }

 private:
  MetricsFile(std::string path, Logger& log) : file_(std::move(path), "lines", log) {}

  AppendFile file_;
  std::vector<std::string> restored_;
};

}  // namespace keel::trainer
