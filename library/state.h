// StateTensor and what goes with it: the state of any program as a checkpoint sees it, by names.
//
// Public: with common/{status,dtype,box}.h it includes all that it needs, and the standard library
// alone.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "common/status.h"
#include "common/tensors/box.h"
#include "common/tensors/dtype.h"

namespace keel::library {

// A named tensor, or the box of it that this rank holds. Owns nothing. One without elements is
// neither saved nor asked for.
struct StateTensor {
  std::string name = {};  // unique in the state; at most 6 dims
  DType dtype = DType::kF32;
  Dims shape = {};              // of the whole tensor: the same on every rank
  void* data = nullptr;         // of the box's first element, in host memory
  Dims strides = {};            // in elements; no dims: row-major without gaps
  std::optional<Box> box = {};  // nothing: the whole tensor
  // Ranks that hold the same box give the same values, which are written once: every byte of them
  // is compared by the save, beside its copy, and a save of others fails.
};

// What a checkpoint holds.
struct TensorEntry {
  std::string name = {};
  DType dtype = DType::kF32;
  Dims shape = {};
};
struct StateDescription {
  int64_t step = 0;
  std::string directory = {};  // in the run's folder
  std::vector<TensorEntry> tensors = {};
  std::string extra = {};
  std::vector<std::string> skipped = {};  // newer checkpoints that are damaged, and how
};

enum class Verbosity { kInfo, kWarnings, kErrors };

struct CheckpointerOptions {
  // What is kept is the union of these; without `keep` nothing is ever removed.
  std::optional<int> keep = {};  // that many newest, at least 1
  int keep_best = 0;             // that many by SaveOptions::metric, the lowest or the highest
  bool higher_is_better = false;
  int64_t keep_every = 0;  // steps that are multiples of it

  // Only reads, while another process may be saving to the folder; any run's checkpoints.
  bool read_only = false;
  // Checkpoints that another run saved in this folder are taken for this run's.
  bool adopt_foreign = false;

  // Of a job of several ranks: each has a checkpointer of its own on the same folder. They agree
  // over a key-value store: "host:port" of a TCPStore of PyTorch or of Keel's own. `job` names this
  // job and this start of it, the same on all ranks and never twice in a store.
  int rank = 0;
  int world = 1;
  std::string store = {};
  std::string store_secret = {};  // of Keel's own store, if it asks for one
  std::string job = {};
  std::chrono::milliseconds deadline{120'000};  // of every wait for a peer, beside the disk's time

  std::string io = "auto";               // or buffered, direct, io_uring (docs/checkpoint.md)
  int writers = 1;                       // threads that write a save
  int readers = 2;                       // that read and verify a load
  Verbosity log = Verbosity::kWarnings;  // what goes to standard error
};

// When the caller may overwrite the state again.
enum class Snapshot {
  kCopied,  // when SaveAsync returns: it waits for the copy, not for the disk
  // When WaitCopied says so, which the caller asks before the update: the copy is made beside what
  // goes on. A write that did not ask is found out, and the save fails.
  kOverlapped,
};

struct SaveOptions {
  // Any text, JSON as a rule, which is saved as state.json: rank 0's, or what `merge` makes, on
  // rank 0, of all ranks' in their order. All ranks have a merge, or none.
  std::string extra = {};
  std::function<Result<std::string>(const std::vector<std::string>& extras)> merge = {};
  std::optional<double> metric = {};  // for keep_best; NaN and infinity are none, with a warning
  Snapshot snapshot = Snapshot::kCopied;
  // The memory is a copy that nobody overwrites until the save has ended: it is not copied again.
  bool stable = false;
  // Patterns (fnmatch) of tensors that may differ between ranks, and of which rank 0's are saved.
  std::vector<std::string> from_rank_0 = {};
  // What this rank itself finds wrong with its state, so that it gives none: the save of every rank
  // fails with it, and none waits for this one.
  std::string refused = {};
};

struct LoadOptions {
  std::optional<int64_t> step = {};  // nothing: the newest of this run that is whole
  // Patterns (fnmatch) of tensors that may be on one side alone, or differ in shape or dtype: they
  // keep their values, or are left out.
  std::vector<std::string> allow_missing = {};
  // Values go straight to their places: half of the memory, a fraction of the time. A load that
  // fails leaves the state of no use.
  bool in_place = false;
  bool scratch = false;  // with it: the tensors were made for this load, and are thrown away then
  // Of several ranks: names of what this one has no place for of the checkpoint's `extra`. The load
  // is refused where no rank has one; of tensors that is known without.
  std::vector<std::string> unplaced = {};
  std::string refused = {};  // as of a save
};

struct LoadedState {
  int64_t step = 0;
  std::string directory = {};
  std::string extra = {};
  int64_t bytes = 0;  // read from files by this rank
  double seconds = 0;
  std::vector<std::string> skipped = {};  // newer checkpoints that were damaged, and how
};

}  // namespace keel::library
