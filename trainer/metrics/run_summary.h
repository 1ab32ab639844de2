// RunSummary: what one start of a run came to: the lines that it ends with. Torch-free.
//
// Rank 0's; not thread-safe. It is told of the same lines as the metrics, and knows of no earlier
// start: what a resumed run did before is in its metrics.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "trainer/metrics/step_line.h"
#include "trainer/metrics/step_parts.h"

namespace keel::trainer {

// What a summary says beside its own figures.
struct RunPlaces {
  int64_t total_steps = 0;
  bool stopped = false;  // before the last step
  // The run's folder as it was given, and the newest step that this start has saved.
  std::string folder;
  std::optional<int64_t> saved_step;
  std::vector<std::string> metrics;  // files and folders
  bool has_model = false;            // a checkpoint holds weights
  bool answers = false;              // which have been taught to answer
};

class RunSummary {
 public:
  // The run goes on after `resumed_step`; its time is counted from here.
  explicit RunSummary(int64_t resumed_step, const Clock& clock = SystemClock())
      : clock_(&clock), begin_(clock.Monotonic()), begin_step_(resumed_step), step_(resumed_step) {}

  void AddStep(int64_t step, const StepLine& line);
  void AddValidation(int64_t step, const StepLine& line);
  // One that has ended; `lost_s` of the training's time.
  void AddSave(bool ok, int64_t bytes, double lost_s);
  // Seconds that are in no line: of the save at the end.
  void AddSeconds(std::string_view part, double seconds);

  // Lines without an end: the figures, where things lie, and what to type next.
  std::string Text(const RunPlaces& places) const;

 private:
  // A figure that the run is judged by: the best and the last of its values.
  struct Judged {
    Figure figure;
    std::pair<int64_t, double> best, last;  // step and value
  };
  template <size_t n>
  static void Judge(const std::array<Figure, n>& figures, int64_t step, const StepLine& line,
                    std::optional<Judged>* judged);
  void AddParts(const StepLine& line);
  std::string StepsText(const RunPlaces& places, double seconds) const;
  std::string JudgedText() const;
  std::string TimeText(double seconds) const;
  std::string SavesText() const;

  const Clock* clock_;
  std::chrono::nanoseconds begin_;
  int64_t begin_step_, step_;
  std::optional<Judged> validated_, stepped_;
  std::map<std::string, double, std::less<>> parts_;  // seconds by their name for people
  int64_t saves_ = 0, failed_ = 0, bytes_ = 0;
  double lost_s_ = 0;
};

}  // namespace keel::trainer
