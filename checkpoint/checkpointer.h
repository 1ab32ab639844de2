// Checkpointer: saves and loads the state of a run. plan -> stage -> write -> commit -> track ->
// retain.
//
// Owned by the trainer, one per rank, used from the training thread. Save, Load and Close are
// collective over the coordinator's ranks. It knows shard tables and text documents, nothing of
// models, optimizers or process groups. Everything on disk is described in docs/formats/.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/contents.h"
#include "checkpoint/coordinator.h"
#include "checkpoint/retention.h"
#include "checkpoint/role_state.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "common/json.h"
#include "common/log.h"
#include "common/shard_table.h"

namespace keel::checkpoint {

struct CheckpointOptions {
  std::string run_id;                           // fixed for the life of the run directory
  std::optional<int> max_ckpts_to_keep;         // nothing: keep all; >= 1
  bool remove_previous_ckpt_in_save = false;    // the same as max_ckpts_to_keep = 1
  std::string io = "auto";                      // auto | buffered | direct
  int64_t chunk_bytes = int64_t{4} << 20;       // unit of checksums
  std::chrono::milliseconds deadline{120'000};  // of every wait for a peer, beside the disk's time
  int load_threads = 2;                         // that read and verify, per rank
  RetentionPolicy retention;  // best-k and every-n; keep_latest comes from the two above
  std::vector<std::string> Validate() const;  // every problem, as sentences
};

// A small text file of the checkpoint, e.g. {"trainer_state.json", ...}. Given by rank 0 alone.
struct Document {
  std::string path;  // relative to the step's directory: "actor/huggingface/config.json"
  std::string content;
  bool extra = false;  // belongs to contents.extra (RNG, schedule, cursor)
};

struct SaveRequest {
  int64_t step = 0;
  std::vector<RoleState> roles;
  Contents contents;
  std::vector<Document> documents;
  Json layout;                   // {"tp":2,"dp":1,"pp":2,...}: for people, never needed to load
  std::string config_digest;     // of the model config: "checkpoint of another model" is told by it
  std::optional<double> metric;  // for best-k retention
};

// Seconds and bytes of one save or load, as written to checkpoints.jsonl.
struct SaveRecord {
  int64_t step = 0;
  std::string save_id;
  int64_t bytes = 0;  // this rank's
  int64_t total_bytes = 0;
  double planned_s = 0, blocked_s = 0, staged_s = 0, written_s = 0, fsync_s = 0, commit_s = 0,
         verified_s = 0, total_s = 0;
  std::string io;                // back-end used
  std::vector<int64_t> removed;  // steps that retention removed after this commit
  Json ToJson() const;
};

struct SkippedCheckpoint {
  std::string directory;
  std::string reason;
};

struct LoadRecord {
  int64_t step = 0;
  std::string directory;
  int64_t bytes = 0;  // read by this rank
  double planned_s = 0, read_s = 0, verified_s = 0, applied_s = 0, total_s = 0;
  std::vector<SkippedCheckpoint> skipped;        // newer ones that were not usable, and why
  std::map<std::string, std::string> documents;  // path -> content
  Json manifest;
  Json ToJson() const;
};

struct LoadRequest {
  // auto: the newest valid checkpoint, if any. A path: that one or an error.
  std::string resume_path;       // relative to the file system's root ("global_step_40"); "" = auto
  std::vector<RoleState> roles;  // views say where the values go
  Contents contents;
  std::string config_digest;               // "" = do not compare
  std::vector<std::string> allow_missing;  // patterns of tensors that the checkpoint may lack
};

class Checkpointer {
 public:
  // `fs` is the run directory. All references must outlive this.
  Checkpointer(FileSystem& fs, Coordinator& coordinator, const Clock& clock, Logger& log,
               CheckpointOptions options);
  ~Checkpointer();

  // Takes the run directory's lock (rank 0), collects debris of earlier crashes (half-written and
  // half-deleted directories that provably are ours). Collective. Call once before Save.
  Status Open();

  // Writes, commits, tracks, retains. Returns the same success or failure on every rank; after a
  // failure nothing of the save is visible, and the last good checkpoint is untouched.
  Result<SaveRecord> Save(const SaveRequest& request);

  // Fills the views. Nothing live changes until all ranks have read and verified everything.
  // Nothing to load (auto, empty directory): an empty optional. Checkpoints exist but none is
  // valid: kDataLoss with the reason of each. Without Open it only reads, so that a run can start
  // from the checkpoint of another, which may still be going on.
  Result<std::optional<LoadRecord>> Load(const LoadRequest& request);

  // Ends everything in flight. Collective. The destructor only warns.
  Status Close();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keel::checkpoint
