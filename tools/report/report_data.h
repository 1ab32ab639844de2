// What a run's folder tells of the run: its metrics, checkpoints, starts, samples and
// configuration. Torch-free.
#pragma once

#include <cmath>
#include <cstdint>
#include <filesystem>
#include <map>
#include <optional>
#include <set>
#include <string>
#include <string_view>
#include <vector>

#include "common/json.h"
#include "common/options/flat_values.h"
#include "common/status.h"
#include "tools/report/tailed_file.h"

namespace keel::tools {

struct MetricPoint {
  int64_t step = 0;
  double value = 0;  // as metrics.jsonl has it; may be no finite number
};

// A curve has a gap where this is false. Sums and differences of values that can be drawn are
// finite.
inline bool CanBeDrawn(double value) { return std::abs(value) < 1e300; }

struct CheckpointMark {
  int64_t step = 0;
  int64_t bytes = 0;
  double lost_s = 0;
  bool failed = false;
  bool removed = false;  // by retention, later
  int64_t at_s = 0;      // when it ended, in seconds since 1970; 0: not said
};

struct ReportRun {
  std::string name;                                         // of its folder
  std::map<std::string, std::vector<MetricPoint>> metrics;  // in the order of steps
  int64_t steps = 0;                                        // the last of any line
  std::optional<int64_t> total_steps;                       // as its last step knew them
  int64_t strange_lines = 0;                                // of metrics.jsonl, that are none
  int64_t strange_saves = 0;                                // of checkpoints.jsonl, likewise
  std::vector<CheckpointMark> checkpoints;
  // The steps that it went on from, as checkpoints.jsonl has them: of metrics.jsonl a run that goes
  // back takes the lines of later steps away.
  std::vector<int64_t> starts;
  options::FlatValues config;  // of config.yaml; without what may hold a password
  std::vector<Json> samples;   // responses of the newest dump
  std::string samples_from;    // its file
  std::string samples_lost;    // why there may be some that are not known
};

// A run that may still go on: each look adds what its files have got since the last. Not
// thread-safe.
class RunReader {
 public:
  // Nothing is read yet; there need not be such a folder.
  explicit RunReader(const std::string& folder);

  // Whether anything was new. kNotFound: there is no metrics.jsonl yet; what else there is has been
  // read.
  Result<bool> Look();
  const ReportRun& run() const { return run_; }
  // metrics.jsonl ends within a line: it is being written, or a crash cut it off.
  bool unfinished() const { return !metrics_.rest().empty(); }

 private:
  void Forget();
  void TakeMetrics(std::string_view line);
  void TakeCheckpoint(std::string_view line);
  // Whether it has changed.
  Result<bool> ReadConfig();
  void ReadSamples();
  std::optional<std::filesystem::path> WhereItTrained(const std::string& path) const;

  const std::string folder_;
  ReportRun run_;
  TailedFile metrics_, checkpoints_;
  std::set<int64_t> removed_;
  std::string config_text_;
};

// kNotFound where there is no metrics.jsonl; what else is missing stays empty.
Result<ReportRun> ReadReportRun(const std::string& folder);

// What a reader should know of the run: "2 saves failed".
std::vector<std::string> RunWarnings(const ReportRun& run);
// The last value of a metric; 0 where there is none.
double LastOf(const ReportRun& run, const std::string& metric);

}  // namespace keel::tools
