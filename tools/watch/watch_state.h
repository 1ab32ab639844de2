// WatchedRun: a run as it goes on, for who watches it: what its files have got, whether it is
// running, what is being saved, and what its desk says. Torch-free.
//
// Only reads. Not thread-safe.
#pragma once

#include <chrono>
#include <cstdint>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/json.h"
#include "common/status.h"
#include "tools/report/report_data.h"

namespace keel::tools {

// Whether somebody writes the run's folder, as its lock says.
struct RunWriter {
  enum class Kind {
    kNone,    // it has ended, or not begun
    kHere,    // a process of this machine
    kAway,    // one of another machine, if that is still there
    kGone,    // it was killed: it has not taken its name out of the lock
    kHidden,  // the lock may not be read
  };
  Kind kind = Kind::kNone;
  std::string who;  // as the lock has it; of kHidden, why it cannot be read
};

struct SaveInFlight {
  int64_t step = 0;
  double seconds = 0;  // since it began to write
};

struct WatchState {
  const ReportRun* run = nullptr;
  bool begun = false;  // there are metrics
  RunWriter writer;
  std::optional<int64_t> total_steps;  // as configuration or last step say
  double age_s = -1;                   // of metrics.jsonl's last change; below 0: none
  int64_t kept = 0;                    // checkpoints in the folder
  int64_t newest = -1;                 // the newest of them, by when it was committed
  int64_t newest_s = 0;                // that time, in seconds since 1970
  std::vector<SaveInFlight> saves;     // also of a save that a crash has left
  Json desk;                           // null: the run has none
  int64_t now_s = 0;                   // seconds since 1970
};

class WatchedRun {
 public:
  // There need not be such a folder yet.
  explicit WatchedRun(std::string folder);

  // What has changed; `state` points into this. kInvalidData and kIo name what cannot be read, and
  // the state is as far as it got.
  Status Look();
  const WatchState& state() const { return state_; }

 private:
  RunWriter Writer() const;
  void ReadFolder();

  const std::string folder_;
  RunReader reader_;
  WatchState state_;
  std::chrono::steady_clock::time_point next_desk_;
};

// What is to be said of the run, in words, and in the order of importance: "loss", "2.3451, best
// 2.3000 at step 41".
std::vector<std::pair<std::string, std::string>> WatchFacts(const WatchState& state);
// Seconds of the parts of the last step that has any: name and seconds, in their order, and what
// is left of the whole step as "other".
std::vector<std::pair<std::string, double>> LastStepParts(const ReportRun& run);

}  // namespace keel::tools
