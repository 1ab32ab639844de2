// What a run's folder tells of the run: its metrics, checkpoints, starts, samples and
// configuration. Torch-free.
#pragma once

#include <cstdint>
#include <map>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/options/flat_values.h"
#include "common/status.h"

namespace keel::tools {

struct MetricPoint {
  int64_t step = 0;
  double value = 0;  // as metrics.jsonl has it; may be no finite number
};

struct CheckpointMark {
  int64_t step = 0;
  int64_t bytes = 0;
  double lost_s = 0;
  bool failed = false;
  bool removed = false;  // by retention, later
};

struct ReportRun {
  std::string name;                                         // of its folder
  std::map<std::string, std::vector<MetricPoint>> metrics;  // in the order of steps
  int64_t steps = 0;                                        // the last of any line
  int64_t strange_lines = 0;                                // of metrics.jsonl, that are none
  std::vector<CheckpointMark> checkpoints;
  std::vector<int64_t> starts;  // the steps that it went on from
  options::FlatValues config;   // of config.yaml; without what may hold a password
  std::vector<Json> samples;    // responses of the newest dump
  std::string samples_from;     // its file
};

// kNotFound where there is no metrics.jsonl; what else is missing stays empty.
Result<ReportRun> ReadReportRun(const std::string& folder);

}  // namespace keel::tools
