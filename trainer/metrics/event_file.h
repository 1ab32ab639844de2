// EventFile: a run's metrics as TensorBoard reads them. Torch-free.
//
// Rank 0's; not thread-safe. Each start of a run adds a file to the folder; its first event takes
// back the steps that the run does again, so that each stands once, also after a start that was
// killed. An event is written at once, with one call; one that cannot be is counted and said
// (AppendFile).
#pragma once

#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/clock.h"
#include "common/log.h"
#include "trainer/metrics/append_file.h"

namespace keel::trainer {

class EventFile {
 public:
  // Makes the folder. The run goes on after `resumed_step`; with 0 it begins anew, and what earlier
  // files have of its steps is not shown any more. `log` must outlive this.
  static EventFile Begin(const std::string& directory, int64_t resumed_step, Logger& log,
                         const Clock& clock = SystemClock());

  // What is taken back is so from here on, and not with the first event.
  void TakeBack();
  void Scalars(int64_t step, std::span<const std::pair<std::string, double>> scalars);
  void Histogram(int64_t step, std::string_view name, std::span<const double> values);
  void Text(int64_t step, std::string_view name, std::string_view markdown);
  void Close() { file_.Close(); }

  const std::string& path() const { return file_.path(); }

 private:
  EventFile(std::string path, Logger& log, const Clock& clock)
      : file_(std::move(path), "events", log), clock_(&clock) {}
  double Now() const;
  // With the events that a file begins with, unless they have been written.
  void Write(int64_t step, const std::string& event);

  AppendFile file_;
  const Clock* clock_;
  std::string head_;
};

}  // namespace keel::trainer
