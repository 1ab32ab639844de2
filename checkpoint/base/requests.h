// What a trainer asks of a Checkpointer, and what it hears of it.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <set>
#include <string>
#include <vector>

#include "checkpoint/base/role_state.h"
#include "checkpoint/format/contents.h"
#include "checkpoint/format/save_records.h"
#include "checkpoint/format/setting_names.h"
#include "common/enum_names.h"
#include "common/json.h"
#include "common/span_recorder.h"
#include "common/status.h"

namespace keel::checkpoint {

// How the bytes of a save get from memory to the disk.
enum class IoBackend {
  kBuffered,  // through the page cache
  kDirect,    // past it, in whole blocks, one piece of a thread after the other
  kIoUring,   // as direct, with a few pieces of a thread under way at once
};
constexpr auto NamesOf(IoBackend) {
  using enum IoBackend;
  return EnumNames<IoBackend>(
      {{kBuffered, "buffered"}, {kDirect, "direct"}, {kIoUring, "io_uring"}});
}

// The first stands for the fastest of the others, which have the back-ends' names.
enum class IoChoice { kAuto, kBuffered, kDirect, kIoUring };
constexpr auto NamesOf(IoChoice) {
  using enum IoChoice;
  return EnumNames<IoChoice>({{kAuto, "auto"},
                              {kBuffered, NameOf(IoBackend::kBuffered)},
                              {kDirect, NameOf(IoBackend::kDirect)},
                              {kIoUring, NameOf(IoBackend::kIoUring)}});
}

class PeerChannel;

// What is kept is the union of all rules. Without `keep_latest` nothing is ever removed.
struct RetentionPolicy {
  std::optional<int> keep_latest;  // >= 1: that many newest commits
  int keep_best = 0;               // that many by metric
  bool higher_is_better = false;
  // Save ids of commits whose metric is another, which tells nothing beside this one's values.
  std::set<std::string> of_other_metric = {};
  int64_t keep_every = 0;  // steps that are multiples of it; 0: no such rule
};

struct CheckpointOptions {
  // Fixed for the life of the run directory. "": what its file run_id says; where there is none,
  // the first Open takes what the checkpoints there say (run_identity.h), or makes a new one.
  std::string run_id;
  // Checkpoints of other runs in the directory are taken for this run's: by a load of the newest,
  // and where the directory's id is lost.
  bool adopt_foreign = false;
  // That each of the run's checkpoints has; where one has not, Open refuses the directory. "": of
  // whatever roles they are.
  std::string role;
  std::optional<int> max_ckpts_to_keep;       // nothing: keep all; >= 1
  bool remove_previous_ckpt_in_save = false;  // the same as max_ckpts_to_keep = 1
  IoChoice io = IoChoice::kAuto;
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
  SpanRecorder* spans = nullptr;  // where saves are recorded; may be null, must outlive the saves
  RetentionPolicy retention;      // best-k and every-n; keep_latest comes from the two above
  SettingNames names;             // of all these, in messages
};

// The longest a peer may take for `bytes` of disk beside the deadline: 20 MB/s.
inline std::chrono::milliseconds WithDiskTime(std::chrono::milliseconds deadline, int64_t bytes) {
  constexpr int64_t kSlowestBytesPerMs = 20'000;
  return deadline + std::chrono::milliseconds(bytes / kSlowestBytesPerMs);
}

// A file of the checkpoint that is made in memory, e.g. {"trainer_state.json", ...}, of any size.
// Given by rank 0 alone.
struct Document {
  std::string path;  // relative to the step's directory: "actor/huggingface/config.json"
  std::string content;
  bool extra = false;  // belongs to contents.extra (RNG, schedule, cursor)
  // The content, of the same size, once the save knows the digest of SaveRequest::digest_role.
  // Called once, on the saver's thread.
  std::function<std::string(uint64_t digest)> of_digest = nullptr;
};

struct SaveRequest {
  int64_t step = 0;
  std::vector<RoleState> roles;
  Contents contents;
  std::vector<Document> documents;
  // The role of whose weights the save takes the digest, over all ranks, from the memory that it
  // copies: the sum of DigestWeight times their digest (common/tensors/tensor_digest.h), 0 when
  // `contents` has no weights. "": none. The same on every rank.
  std::string digest_role;
  double taken_s = 0;            // what making this request cost the training: counted as blocked
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
  // With it: the views are of memory that was made for this load, so that nobody misses what a
  // failed one has overwritten, and its message does not speak of it.
  bool scratch = false;
};

// What the disk must hold, as rank 0 sees it.
struct DiskForecast {
  int64_t checkpoint_bytes = 0;  // of one
  // That the run still needs: the newest and the best that retention keeps, and the one that is
  // being written, less what of these is there already. One checkpoint when everything is kept.
  // Steps that `keep_every` keeps are not counted: the saver knows no last step.
  int64_t needed_bytes = 0;
  int64_t free_bytes = 0;
};

// A save that has ended.
struct SaveResult {
  Status status;
  SaveRecord record;  // of a failed save: what was measured until then
};

}  // namespace keel::checkpoint
