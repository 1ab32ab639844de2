// SaveSession: how a run saves: in the background or not, what becomes of a save that is due while
// one is in flight, and what each save cost the training.
//
// Owned by the trainer, used from the training thread. The saving methods are collective over all
// ranks.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "common/log.h"
#include "common/status.h"
#include "trainer/config/config.h"

namespace keel::trainer {

class SaveSession {
 public:
  // `checkpointer` and `log` must outlive this.
  SaveSession(checkpoint::Checkpointer& checkpointer, const CheckpointSection& options, Logger& log)
      : checkpointer_(checkpointer), options_(options), log_(log) {}

  // What becomes of the save before that of `step`: false where this one does not happen, because
  // it is skipped or the one before does not end. `busy_somewhere` says whether that is in flight
  // on some rank, and must be the same on every rank: a rank that skipped a save which another one
  // made would leave it waiting.
  bool MakeRoom(int64_t step, bool busy_somewhere);
  // Saves after MakeRoom, in the background, if configured, or blocks.
  void Save(checkpoint::SaveRequest request);
  // Saves and returns when it is on the disk.
  void SaveAndWait(const checkpoint::SaveRequest& request);

  // A step that took `seconds` is over. Returns the saves that ended since, with what they cost.
  std::vector<checkpoint::SaveResult> AfterStep(double seconds);
  // Waits for the save in flight, as Checkpointer::Wait does, and returns what AfterStep has not.
  std::vector<checkpoint::SaveResult> Finish();

  // The newest save that has ended well, and how the newest that has ended did end.
  std::optional<int64_t> saved_step() const { return saved_step_; }
  const Status& last_status() const { return last_status_; }
  // This rank has a save in flight, which all others hear of by the StepVote.
  bool busy() const { return checkpointer_.busy(); }
  struct Counts {
    // Saves that were due while another was in flight: waited for it, did not happen, or gave it up
    // (counted when that has ended).
    int64_t waited = 0, skipped = 0, superseded = 0;
    int64_t failed = 0;           // for another reason
    int64_t failed_in_a_row = 0;  // of these, since the last that ended well
  };
  const Counts& counts() const { return counts_; }

 private:
  void Note(std::vector<checkpoint::SaveResult> ended);
  // Counts a save that ended, well or not, and warns of those that fail one after the other.
  void Count(int64_t step, const Status& status);
  // A save that did not even begin.
  void NoteFailed(int64_t step, const Status& status);
  double Baseline() const;

  checkpoint::Checkpointer& checkpointer_;
  const CheckpointSection options_;
  Logger& log_;
  std::vector<checkpoint::SaveResult> ended_;
  std::vector<double> undisturbed_;  // seconds of the last steps beside which nothing was saved
  bool disturbed_ = false;           // a save was in flight when the step that goes on began
  bool superseded_ = false;          // the last save gave up the one before it
  double waited_s_ = 0;              // of the save in flight, for the one before it
  double disturbed_s_ = 0;           // beyond the baseline, of the steps beside the save in flight
  std::optional<int64_t> saved_step_;
  Status last_status_;
  Counts counts_;
};

}  // namespace keel::trainer
