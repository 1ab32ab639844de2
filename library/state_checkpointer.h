// StateCheckpointer: saves and loads the tensors of any program, beside its work, in Keel's format.
//
// One per rank, which owns the folder until it is closed; a second one on the same folder is
// refused with kBusy. Used from one thread; WaitCopied, Cancel and done() from any. Open,
// SaveAsync, Save, Describe, Load, Restore and Close are collective over the ranks, if there are
// several. docs/library.md shows its use, docs/checkpoint.md says what a checkpoint promises.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <limits>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "common/status.h"
#include "library/state.h"

namespace keel::library {

// A save that was begun. Cheap to copy; it may outlive the checkpointer, whose end waits for it.
class SaveHandle {
 public:
  int64_t step() const;
  // It is on the disk, or has failed.
  bool done() const;
  // Returns when it is: ok once the checkpoint has been synced and opened again as a reader does.
  // Otherwise why not; older checkpoints are as they were. kIo as well when the disk stands still.
  Status Wait() const;
  // Waits for so long at most; says whether it is done. Wait then returns at once.
  bool WaitFor(std::chrono::milliseconds most) const;
  // Seconds of the whole save, and that SaveAsync and WaitCopied took of them; once done.
  double seconds() const;
  double blocked_seconds() const;

 private:
  friend class StateCheckpointer;
  struct Save;
  explicit SaveHandle(std::shared_ptr<Save> save) : save_(std::move(save)) {}
  std::shared_ptr<Save> save_;
};

class StateCheckpointer {
 public:
  // Makes the folder where it is missing, takes its lock, clears away what earlier crashes left.
  static Result<std::unique_ptr<StateCheckpointer>> Open(const std::string& folder,
                                                         CheckpointerOptions options = {});
  // Waits for the save in flight. A failure that nobody has asked about is logged.
  ~StateCheckpointer();
  StateCheckpointer(const StateCheckpointer&) = delete;
  StateCheckpointer& operator=(const StateCheckpointer&) = delete;

  // Begins the save of `step`; Snapshot says when the memory may change. The memory must stay
  // allocated until then. A save that is still in flight is waited for first. kInvalidData names
  // what is wrong with a tensor; nothing has begun then.
  Result<SaveHandle> SaveAsync(int64_t step, std::span<const StateTensor> state,
                               const SaveOptions& options = {});
  // The same, and waits until it is on the disk.
  Status Save(int64_t step, std::span<const StateTensor> state, const SaveOptions& options = {});

  // Returns when the save in flight needs this memory no more, with the seconds waited; by default
  // all of it. Exactly 0.0 when there is none. Before state of Snapshot::kOverlapped is
  // overwritten.
  double WaitCopied(const void* begin = nullptr, size_t bytes = std::numeric_limits<size_t>::max());
  bool busy() const;  // a save is in flight
  // Asks the save in flight to end. It then fails with kCancelled, unless it is already being
  // published. Not collective: one rank suffices.
  void Cancel();

  // Of this run's committed checkpoints, the newest commit first. Reads their manifests; files are
  // not looked at. Not collective.
  Result<std::vector<int64_t>> Steps() const;
  Result<std::optional<int64_t>> LatestStep() const;

  // What the newest checkpoint holds, or that of `step`; nothing when there is none.
  Result<std::optional<StateDescription>> Describe(std::optional<int64_t> step = {});
  // Fills the tensors, which name all that the checkpoint holds and nothing else, with its dtypes
  // and shapes; boxes may be cut otherwise than when they were saved. Every byte is verified, and
  // nothing is written to the tensors unless all of it is good (but see in_place). A damaged
  // checkpoint is passed over for the next older one, which has to hold the same tensors, unless a
  // step was named. Nothing when there is no checkpoint at all.
  Result<std::optional<LoadedState>> Load(std::span<const StateTensor> state,
                                          const LoadOptions& options = {});

  // The newest checkpoint that is whole, whatever it holds, or that of `step`: `places` makes
  // memory for the tensors that are described, and is asked again, for the next older one, where
  // one turns out to be damaged. Nothing when there is no checkpoint at all.
  using Places = std::function<Result<std::vector<StateTensor>>(const StateDescription& saved)>;
  Result<std::optional<LoadedState>> Restore(const Places& places,
                                             std::optional<int64_t> step = {});

  // Waits for the save in flight and gives the folder free. The first failure of a save that nobody
  // has asked about. Nothing but the getters may be called after it.
  Status Close();
  // The same for an end on an error, when peers may be gone: the save in flight gets its chance.
  // Not collective. The destructor does this of several ranks, and Close of one.
  Status Abandon();

  const std::string& folder() const;
  int rank() const;
  int world() const;

  struct Impl;

 private:
  explicit StateCheckpointer(std::shared_ptr<Impl> impl) : impl_(std::move(impl)) {}
  std::shared_ptr<Impl> impl_;
};

}  // namespace keel::library
