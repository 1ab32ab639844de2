// RunTrace: what a rank's spans are recorded to (trainer.trace), and which steps of it libtorch's
// profiler looks into (trainer.profile).
//
// Made by the runner before the folder's checkpointer, which records to it, and outlives that. Used
// from the training thread.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <string>

#include "common/log.h"
#include "common/span_recorder.h"
#include "parallel/groups/context.h"
#include "trainer/config/sections.h"
#include "trainer/metrics/trace_file.h"
#include "trainer/run/operator_profile.h"

namespace keel::trainer {

class RunTrace {
 public:
  // Nothing is written yet. All must outlive this.
  RunTrace(const TrainerSection& trainer, Logger& log);
  ~RunTrace();

  // Null where nothing is traced.
  SpanRecorder* recorder() { return recorder_.get(); }

  // The run goes on after `resumed_step`: the ranks compare their clocks, by leaving a few barriers
  // together, and begin to record. Collective over the context's ranks where the run is traced.
  void Begin(parallel::ParallelContext& context, int64_t resumed_step);
  // What follows, up to EndStep, is of `step`. Neither is collective.
  void BeginStep(int64_t step);
  void EndStep(int64_t step);
  // The run ends. May be called again.
  void Close();

 private:
  const TrainerSection& trainer_;
  Logger& log_;
  std::unique_ptr<SpanRecorder> recorder_;
  std::optional<TraceFile> file_;
  std::unique_ptr<OperatorProfile> profile_;
  int64_t step_ = 0;
};

}  // namespace keel::trainer
