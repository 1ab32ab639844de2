// WorkerTrace: what a rank that generates, and does not train, notes of when it does what
// (trainer.trace).
//
// Its spans are of the step that its weights are the first for. Until it serves weights nothing is
// noted. Owned by the rank, and used from the thread that generates; recorder() is anyone's.
#pragma once

#include <cstdint>
#include <optional>
#include <string_view>

#include "common/log.h"
#include "common/span_recorder.h"
#include "trainer/config/sections.h"
#include "trainer/metrics/trace_file.h"

namespace keel::trainer::rl {

// Which rank of the job it is.
struct WorkerPlace {
  int rank = 0, world = 1;
  int tp = 0;  // its seat in the replica
};

class WorkerTrace {
 public:
  // Both must outlive this. Where nothing is to be traced, all calls do nothing.
  WorkerTrace(const TrainerSection& trainer, Logger& log) : trainer_(trainer), log_(log) {}
  ~WorkerTrace();

  // Null where nothing is traced.
  SpanRecorder* recorder() { return trainer_.trace.enable ? &recorder_ : nullptr; }

  // Weights are served which step `step` is the first to want. The first time its file is opened.
  void Serve(const WorkerPlace& place, int64_t step);
  // From here on, until the next call, it does `what`, a name of static storage.
  void Now(const char* what);

 private:
  void Open(const WorkerPlace& place, int64_t step);
  void Write();

  const TrainerSection& trainer_;
  Logger& log_;
  SpanRecorder recorder_;
  bool asked_ = false;  // for its file
  std::optional<TraceFile> file_;
  std::string_view what_;
  std::optional<ScopedSpan> span_;  // of that
  int64_t step_ = 0;
  int64_t written_ns_ = 0;
};

}  // namespace keel::trainer::rl
