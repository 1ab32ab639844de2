// Saver: one save on one rank, from the plan to the committed step.
//
// Performs what CommitProtocol says, on the disk and over the coordinator. The same code serves a
// save that blocks the training and one on a thread of its own; they differ only in whether the
// snapshot must be copied before it may change. Used by one thread at a time.
#pragma once

#include <atomic>
#include <chrono>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/base/requests.h"
#include "checkpoint/commit/committer.h"
#include "checkpoint/commit/retention.h"
#include "checkpoint/run/catalog.h"
#include "checkpoint/save/backend_choice.h"
#include "checkpoint/save/commit_protocol.h"
#include "checkpoint/save/save_messages.h"
#include "checkpoint/save/save_planner.h"
#include "checkpoint/save/save_progress.h"
#include "checkpoint/save/snapshot.h"
#include "checkpoint/save/snapshot_writer.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/files/watched_file_system.h"
#include "common/log.h"
#include "common/span_recorder.h"

namespace keel::checkpoint {

class Saver {
 public:
  // All must outlive this. `guard` is asked on rank 0 right before a step is published, the tracker
  // written, and anything removed: not ok when this run does not own its directory any more.
  // `entropy` gives 64 random bits for a save id.
  Saver(FileSystem& fs, Coordinator& coordinator, const Clock& clock, Logger& log,
        const CheckpointOptions& options, std::function<Status()> guard,
        std::function<uint64_t()> entropy = SystemEntropy);
  ~Saver();

  // Plans, chooses the back-end, makes the staging memory that saves of this state need, and looks
  // at the disk. Collective; `tag` as in coordinator.h.
  Result<DiskForecast> Prepare(const std::string& tag, Snapshot& snapshot);

  // The whole save. Collective. `record` holds what was measured, also after a failure. On return
  // nothing of the snapshot is held.
  Status Run(const std::string& tag, Snapshot& snapshot, SaveRecord* record);

  // Rank 0, once the directory is this run's: what is there, with a warning of each checkpoint that
  // cannot be read, and the number of the next commit.
  Result<int64_t> LookAround();

  // Rank 0, while no save goes on: the tracker and the retention of the newest commit, which a save
  // that was cut off after its commit has left undone. May read all of a checkpoint. Returns the
  // steps that were removed; what fails is logged.
  std::vector<int64_t> Settle();

  // Rank 0: a load has passed over this one, whose content is not what was saved. Not while a save
  // goes on.
  void NoteDamaged(const std::string& directory);

  // While no save goes on: the next one copies nothing before it has a plan of its own.
  void PlanAfresh() { planner_.Forget(); }

  // When the save that goes on last got somewhere, by the monotonic clock, and how long it may take
  // to get further before it is given up as one that will never end. Any thread.
  std::chrono::nanoseconds moved() const { return progress_.moved(); }
  std::chrono::milliseconds longest_pause() const { return 2 * patience_.load(); }
  int64_t staging_bytes() const { return writer_ == nullptr ? 0 : writer_->pool_bytes(); }

 private:
  struct Running;  // one Run

  static uint64_t SystemEntropy();
  static SpanDetails SpanOf(const Running& running);

  Status PlanAndPerform(Running* running);
  CommitProtocol::Event Perform(const CommitProtocol::Action& action, Running* running);
  Status Send(const CommitProtocol::Action& action, const Running& running);
  Result<std::string> Receive(const CommitProtocol::Action& action, Running* running);
  // Takes messages that were read from the store, when nobody waits for this rank.
  void TidyStore();
  Result<std::string> Begin(Running* running);
  // A background save copies before anyone else has been heard of, so that the training never waits
  // for a peer or the disk; what is copied is of use if the plan turns out to be the last one
  // again.
  void StageAhead(Running* running);
  WriteHooks HooksOf(Running* running);
  Result<std::string> Write(const std::string& order, Running* running);
  Status Interrupted(Running* running);
  Result<std::string> Publish(const std::vector<std::string>& reports, Running* running);
  void Conclude(Running* running);

  Result<SnapshotWriter*> WriterFor(IoBackend ordered);
  Status Reserve(SnapshotWriter* writer, std::span<const FileToWrite> files) const;
  void WarnUnlessTracked(const Status& status);
  void Retain(SaveRecord* record);
  RetentionPolicy Policy() const;
  RetentionRequest Retention() const;
  bool leads() const { return coordinator_.rank() == 0; }

  FileSystem& fs_;
  Coordinator& coordinator_;
  const Clock& clock_;
  Logger& log_;
  const CheckpointOptions& options_;
  const std::function<Status()> guard_;
  const std::function<uint64_t()> entropy_;
  SaveProgress progress_;
  WatchedFileSystem watched_;  // for all that is not written in bulk
  SavePlanner planner_;
  Committer committer_;
  Catalog catalog_;  // rank 0
  std::unique_ptr<SnapshotWriter> writer_;
  // How long a rank waits for another's report or outcome: as long as that one's disk may take.
  std::atomic<std::chrono::milliseconds> patience_;
  BackendChoice backend_;
  std::vector<std::string> read_;  // keys of messages that this rank has received
  KnownCommits known_;             // rank 0
  // Rank 0: no less than the number of any commit that is there, once that was looked at. Nobody
  // else commits here, so that one which cannot be read later has no higher one.
  std::optional<int64_t> newest_sequence_;
};

}  // namespace keel::checkpoint
