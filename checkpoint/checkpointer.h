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
#include "checkpoint/peer_channel.h"
#include "checkpoint/retention.h"
#include "checkpoint/role_state.h"
#include "checkpoint/save_records.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "common/json.h"
#include "common/log.h"
#include "common/shard_table.h"

namespace keel::checkpoint {

struct CheckpointOptions {
  // Fixed for the life of the run directory. "": what its file run_id says; where there is none,
  // the first Open takes what the checkpoints there say (run_identity.h), or makes a new one.
  std::string run_id;
  // Checkpoints of other runs in the directory are taken for this run's: by a load of the newest,
  // and where the directory's id is lost.
  bool adopt_foreign = false;
  std::optional<int> max_ckpts_to_keep;         // nothing: keep all; >= 1
  bool remove_previous_ckpt_in_save = false;    // the same as max_ckpts_to_keep = 1
  std::string io = "auto";                      // auto | buffered | direct | io_uring
  int64_t chunk_bytes = int64_t{4} << 20;       // unit of checksums
  std::chrono::milliseconds deadline{120'000};  // of every wait for a peer, beside the disk's time
  int load_threads = 2;                         // that read and verify, per rank
  // How long a rank looks again for files that rank 0 has seen: network file systems show them
  // late.
  std::chrono::milliseconds visibility_grace{40'000};
  // Bytes that a rank hands to others, and takes from them, in one round of a load.
  int64_t load_round_bytes = int64_t{8} << 20;
  int dist_ckpt_workers = 1;  // threads that write, per rank
  // Staging memory of a rank at most, in bytes; nothing: what a background save needs to be copied
  // at once. With less, copying goes in waves behind the disk.
  std::optional<int64_t> host_memory_cap;
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
  // Retention removes nothing after this save: the state may be worse than what it would remove.
  bool keep_older = false;
};

struct LoadRequest {
  // auto: the newest valid checkpoint of this run, if any. A path: that one, of whatever run, or an
  // error.
  std::string resume_path;       // relative to the file system's root ("global_step_40"); "" = auto
  std::vector<RoleState> roles;  // views say where the values go
  // With hf_model and without model, the weights are those of the whole Hugging Face model.
  Contents contents;
  std::string config_digest;  // "" = do not compare
  // Patterns (fnmatch) of tensors, or of roles, that may be missing on one side, or of tensors that
  // may differ in shape or dtype: this run's then keep their values, the checkpoint's are left out.
  std::vector<std::string> allow_missing;
  // Over which the ranks hand each other what they read, so that each byte is read once. Null on
  // any rank: each reads what it needs.
  PeerChannel* channel = nullptr;
  // Ranks of one host read each other's memory instead, where the kernel lets them.
  bool share_memory = true;
  // Values go straight to their places, before all has been verified: half of the memory, a
  // fraction of the time. For a caller that ends when the load fails, as a run at its start: the
  // views then hold parts of several steps. Every checkpoint that is tried overwrites what was
  // written for one that turned out to be damaged.
  bool in_place = false;
};

// What the disk must hold, as rank 0 sees it.
struct DiskForecast {
  int64_t checkpoint_bytes = 0;  // of one
  // That the run still needs: the newest and the best that retention keeps, and the one that is
  // being written, less what of these is there already. One checkpoint when everything is kept.
  // Those of every n-th step are not counted: the saver knows no last step.
  int64_t needed_bytes = 0;
  int64_t free_bytes = 0;
};

// A save that has ended.
struct SaveResult {
  Status status;
  SaveRecord record;  // of a failed save: what was measured until then
};

class Checkpointer {
 public:
  // `fs` is the run directory. All references must outlive this.
  Checkpointer(FileSystem& fs, Coordinator& coordinator, const Clock& clock, Logger& log,
               CheckpointOptions options);
  ~Checkpointer();

  // Takes the run directory's lock (rank 0), settles its id, collects debris of earlier crashes
  // (half-written and half-deleted directories that provably are ours). Call once before Save.
  Status Open();

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
  // Of anything else.
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
  // long that takes.
  Status Close();
  // For an end on an error, before the destructor, when peers may be gone: the save in flight gets
  // its chance. kIo as from Wait: then nothing that it uses may be destroyed, and the
  // process has to end without. Not collective.
  Status Abandon();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace keel::checkpoint
