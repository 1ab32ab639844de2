// MetricsHistory: which lines of metrics.jsonl are those of the run that begins now, where its
// folder has seen starts from more than one checkpoint. Torch-free.
//
// What is taken out of the file is kept, behind a line that tells when: metrics.dropped.jsonl is
// the log of these rewinds, and those that the checkpoint knows nothing of are taken back, the last
// first. So a run has the lines that its checkpoint was saved with.
#pragma once

#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "common/files/file_system.h"
#include "common/log.h"
#include "common/status.h"
#include "trainer/metrics/run_start.h"

namespace keel::trainer {

inline constexpr std::string_view kMetricsName = "metrics.jsonl";
// Lines that a start did not take over, each as it was.
inline constexpr std::string_view kDroppedMetricsName = "metrics.dropped.jsonl";

// One start that took lines out of metrics.jsonl, or all of it.
struct MetricsRewind {
  int64_t resumed_step = 0;
  int64_t sequence = 0;  // the folder's newest then: what has a higher one was saved after it
  // What stayed: lines of earlier steps than the last that stayed, and so many of that one.
  int64_t last_step = 0;
  int64_t of_last_step = 0;
  std::string file = {};                // that all lines became, where none stayed; or
  int64_t lost = 0;                     // lines for which there was no room; or
  std::vector<std::string> lines = {};  // what was taken out, without the ends of lines

  // As it stands in metrics.dropped.jsonl: a line of its own, then the others.
  std::string Text() const;
};

// What metrics.dropped.jsonl has of them, in order. Other lines are passed over, and a rewind that
// has not all its lines has lost them.
std::vector<MetricsRewind> ParseRewinds(std::string_view dropped);

class MetricsHistory {
 public:
  // Of the folder that `fs` is: nothing is changed yet. Both must outlive this.
  static Result<MetricsHistory> Read(FileSystem& fs, const RunStart& start, Logger& log);

  // The last step up to which the file, and every other log of the run, tells of this run by now.
  int64_t known_step() const { return known_step_; }
  // Behind it: lines that come back, in order; other logs do not have them any more.
  const std::vector<std::string>& restored() const { return restored_; }

  // Makes the file so, where there is one: a run that begins anew begins a file of its own, and
  // what is there gets the first name metrics.<n>.jsonl that is free. Lines that are no metrics,
  // and those of steps that are done again, go to the end of metrics.dropped.jsonl. Nothing is
  // lost, but by a full disk; what was done is logged.
  Status Apply();

 private:
  MetricsHistory(FileSystem& fs, const RunStart& start, Logger& log)
      : fs_(&fs), start_(start), log_(&log) {}
  Status SetAside();
  Status Rewrite();
  // At the end of metrics.dropped.jsonl, all of it or nothing.
  Status Append(std::string text);
  bool TakeBack(const MetricsRewind& rewind);

  FileSystem* fs_;
  RunStart start_;
  Logger* log_;
  std::string content_;               // of metrics.jsonl
  std::vector<std::string> old_;      // its lines
  std::vector<std::string> strange_;  // those that are no metrics
  int64_t first_strange_ = 0;
  std::string dropped_;              // metrics.dropped.jsonl
  std::vector<std::string> wanted_;  // the lines of this run
  std::vector<std::string> restored_;
  int64_t known_step_ = 0;
};

}  // namespace keel::trainer
