// Checkpointer: saves and loads the state of a run. plan -> stage -> write -> commit -> track ->
// retain.
//
// Owned by the trainer, one per rank, used from the training thread. A save either blocks (Save) or
// goes on beside the training (StartSave), by the same code; then the trainer asks WaitFree before
// it overwrites state. All methods but WaitFree, busy and the getters are collective over the
// coordinator's ranks: every rank calls them in the same order. It knows shard tables and text
// documents, nothing of models, optimizers or process groups. Everything on disk is described in
// docs/formats/.
#pragma once

#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/base/requests.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/json.h"
#include "common/log.h"
#include "common/status.h"

namespace keel::checkpoint {

// Every problem of the options, as sentences.
std::vector<std::string> Validate(const CheckpointOptions& options);

class Checkpointer {
 public:
  // `fs` is the run directory. All references must outlive this.
  Checkpointer(FileSystem& fs, Coordinator& coordinator, const Clock& clock, Logger& log,
               CheckpointOptions options);
  ~Checkpointer();

  // Takes the run directory's lock (rank 0), settles its id, collects debris of earlier crashes
  // (half-written and half-deleted directories that provably are ours). Call once before Save.
  Status Open();

  // Not ok, on every rank, where one sees another directory than rank 0's under this name, as on
  // nodes that have not mounted it: no save could ever be whole. After Open.
  Status CheckOneFolder();

  // Pays in advance what the first save of such a state would cost: the plan, the choice of a
  // back-end, and, with `staging`, the memory that a background save copies to. The forecast is the
  // same on every rank.
  Result<DiskForecast> Prepare(const SaveRequest& request, bool staging);

  // Writes, commits, tracks, retains. Returns the same success or failure on every rank; after a
  // failure nothing of the save is visible, and the last good checkpoint is untouched.
  Result<SaveRecord> Save(const SaveRequest& request);

  // The same beside the training; returns at once. The state behind `request` may be overwritten
  // where WaitFree lets it. A save that is in flight is waited for first. Where one may be in
  // flight on any rank, WaitOnAll goes first: this fails on the rank alone whose save does not end.
  Status StartSave(SaveRequest request);

  // Before a StartSave whose state has other names, shapes or boxes than the last one's on some
  // rank: this rank's may be as they were, and would be copied by the last plan, before it hears of
  // the other. While no save is in flight. Not collective, but of use only where all ranks call it.
  void PlanAfresh();

  // Call before state that was given to StartSave is overwritten or freed: returns when the save in
  // flight needs it no more, with the seconds waited; exactly 0.0 when there is none. A save that
  // makes no progress for the deadline is given up. Not collective; any thread.
  double WaitFree(const void* begin, size_t bytes);

  // This rank's part of a background save is not done. Not collective.
  bool busy() const;
  // The ends of background saves that were not asked for yet, in order; none while one is in
  // flight. Not collective.
  std::vector<SaveResult> Finished();
  // Waits for the save in flight, if there is one, as long as it gets anywhere. kIo
  // when it does not, as under a file system that stands still: it is then still in flight. Not
  // collective.
  Status Wait();
  // The same on every rank, and the same answer: the first failure of any.
  Status WaitOnAll();
  // Asks the save in flight to end. It then fails with kCancelled, unless it is already being
  // published. Not collective: one rank suffices.
  void Cancel();

  // Appends the save's line to checkpoints.jsonl (rank 0). Save does it itself; after StartSave the
  // caller does, who may have measured `lost_s`. Not collective.
  void Note(const SaveResult& result);
  // The same of a load. Load does it itself when this is open.
  void Note(const Result<std::optional<LoadRecord>>& loaded);
  // Notes anything else.
  void Note(const Json& record);

  // Fills the views. Nothing live changes until all ranks have read and verified everything, unless
  // the request says in_place.
  // Nothing to load (auto, empty directory): an empty optional. Checkpoints exist but none is
  // valid: kDataLoss with the reason of each; none is of this run: kConfig, unless adopt_foreign.
  // Without Open it only reads, of any run, so that a run can start from the checkpoint of another,
  // which may still be going on.
  Result<std::optional<LoadRecord>> Load(const LoadRequest& request);

  // After Open. Of the directory; and, on rank 0, the number of a commit that came now.
  const std::string& run_id() const;
  int64_t next_sequence() const;

  // Seconds that the slowest of the last saves took, as rank 0 measured them; 0 before the first.
  // The same on every rank.
  double expected_save_s() const;
  // Host memory kept for staging.
  int64_t staging_bytes() const;

  // Ends everything in flight. The destructor only warns, and waits for what is in flight however
  // long that takes. `settle`: rank 0, which nobody waits for any more, also does what a save that
  // was cut off after its commit has left undone: tracker and retention.
  Status Close(bool settle = false);
  // For an end on an error, before the destructor, when peers may be gone: the save in flight gets
  // its chance. kIo as from Wait: then nothing that it uses may be destroyed, and the
  // process has to end without. Not collective.
  Status Abandon();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keel::checkpoint
