// TraceFile: what a rank notes of its spans: trace/rank_<N>.jsonl in a run's folder. Torch-free.
//
// Each rank has its own; not thread-safe. What is written is there after any end of the process,
// and a line that such an end tore is closed by the next start. When a file is half as large as all
// may be, it becomes the old one, in whose place it comes. What cannot be written is counted and
// said (AppendFile).
#pragma once

#include <cstdint>
#include <string>

#include "common/log.h"
#include "common/span_recorder.h"
#include "common/status.h"
#include "trainer/metrics/append_file.h"
#include "trainer/metrics/trace_format.h"

namespace keel::trainer {

// The machine's and this process's part of a header, with both clocks at this moment.
TraceHeader HeaderOfThisProcess();

class TraceFile {
 public:
  // Makes the folder `folder`/trace. A run that begins anew, with `resumed_step` 0, leaves nothing
  // of an earlier one. `log` must outlive this.
  static Result<TraceFile> Open(const std::string& folder, const TraceHeader& header,
                                int64_t resumed_step, int64_t most_bytes, Logger& log);

  // Adds what was recorded since the last time, with one write; `step` is for messages.
  void Write(int64_t step, SpanRecorder& recorder);
  // At the end: says how much was lost, if anything was.
  void Close() { file_.Close(); }

 private:
  TraceFile(std::string directory, const TraceHeader& header, int64_t most_bytes, Logger& log);
  void Append(int64_t step, const std::string& text);

  std::string directory_;
  TraceHeader header_;
  int64_t most_bytes_;
  Logger* log_;
  AppendFile file_;
  int64_t bytes_ = 0;  // of the file
};

}  // namespace keel::trainer
