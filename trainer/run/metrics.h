// Metrics: a step's line of metrics.jsonl (metrics_file.h), under torchtitan's names, and on the
// console. Rank 0 only.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <utility>

#include "checkpoint/checkpointer.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"
#include "trainer/engine/residency.h"
#include "trainer/metrics/metrics_file.h"
#include "trainer/run/save_session.h"

namespace keel::trainer {

struct StepMetrics {
  int64_t step = 0;
  int64_t total_steps = 0;
  double loss = 0;
  double grad_norm = 0;
  double lr = 0;
  bool skipped = false;
  int64_t skipped_steps = 0;
  int64_t tokens = 0;  // of this step, over all ranks
  int64_t tokens_consumed = 0;
  int64_t samples_consumed = 0;
  std::string sample_digest;  // of the ids of the step's samples, in order
  double step_s = 0;
  double data_s = 0;
  double forward_backward_s = 0;
  double reduce_s = 0;
  double optimizer_s = 0;
  MoveSeconds moves;
  double save_s = 0;      // of the last save, if one ended since the last step
  double mfu = 0;         // share of the measured GEMM rate
  double tflops = 0;      // over all ranks
  double memory_gib = 0;  // largest peak of a rank
  double eta_s = 0;
};

class MetricsWriter {
 public:
  // As MetricsFile::Open, of which `log` hears. `jsonl` and `console` switch the sinks.
  static Result<MetricsWriter> Open(const std::string& directory, int64_t resumed_step, bool jsonl,
                                    bool console, Logger& log);

  // A console line every `log_freq` steps, at the first and the last.
  void Step(const StepMetrics& metrics, int64_t log_freq, Logger& log);
  // A save that has ended, of any earlier step, and what became of others so far.
  void Save(int64_t step, const checkpoint::SaveResult& result, const SaveSession::Counts& counts);
  // The load that this run began with.
  void Load(const checkpoint::LoadRecord& record);
  // A line of a task's own.
  void Write(int64_t step, Json data) { Line(step, std::move(data)); }
  // The run ends: how many lines could not be written, if any.
  void Close() {
    if (file_) file_->Close();
  }
  bool console() const { return console_; }
  // `seconds` include those of moving the weights.
  void Validation(int64_t step, double loss, int64_t tokens, double seconds,
                  const MoveSeconds& moves, Logger& log);

 private:
  MetricsWriter(std::optional<MetricsFile> file, bool console)
      : file_(std::move(file)), console_(console) {}
  void Line(int64_t step, Json data);

  std::optional<MetricsFile> file_;
  bool console_;
};

// "1:02:03"
std::string FormatDuration(double seconds);

}  // namespace keel::trainer
