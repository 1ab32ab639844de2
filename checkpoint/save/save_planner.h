// SavePlanner: who writes which boxes into which file.
//
// Replicas are written once, balanced by bytes, large ones by several ranks where that is fairer,
// and the boxes of each tensor are proved to cover it exactly (ChooseWriters,
// common/tensors/transfer_plan.h): by rank 0, which tells each rank its part. The plan holds no
// memory addresses, so it is kept for the next save; it is made again when any rank's names,
// dtypes, shapes, boxes or contents differ.
#pragma once

#include <chrono>
#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/base/role_state.h"
#include "checkpoint/format/contents.h"
#include "checkpoint/format/manifest.h"
#include "common/status.h"

namespace keel::checkpoint {

struct PlannedTensor {
  std::string scope;  // "actor/model"
  TensorInfo info;
};

struct PlannedShard {
  int tensor = 0;     // index into SavePlan::tensors
  int source = 0;     // index into the table of the rank that writes it
  Box box;            // of the source: all of it, or some rows
  int64_t begin = 0;  // bytes from the start of the file
};

struct PlannedFile {
  std::string path;   // relative to the step's directory
  std::string scope;  // "actor/model"
  std::string role;   // "actor"
  FileRole kind = FileRole::kModel;
  int rank = 0;        // that writes it
  std::string header;  // on the rank that writes it; empty on others
  int64_t size = 0;
  std::vector<PlannedShard> shards;
};

struct SavePlan {
  // Rank 0 has all files, sorted by path; another rank those that it writes.
  std::vector<PlannedFile> files;
  std::vector<PlannedTensor> tensors;  // those of `files`, each once
  std::vector<std::string> roles;      // of any rank, sorted
  int64_t total_bytes = 0;
  int64_t largest_rank_bytes = 0;

  const TensorInfo& tensor_of(const PlannedShard& shard) const {
    return tensors[static_cast<size_t>(shard.tensor)].info;
  }
};

class SavePlanner {
 public:
  // `smallest_part`: bytes of a box at least that is cut between ranks which hold all of it.
  SavePlanner(Coordinator& coordinator, int64_t smallest_part)
      : coordinator_(coordinator), smallest_part_(smallest_part) {}

  // Collective; `tag` as in coordinator.h. The sharded weights are planned for `hf_model` too,
  // since the whole model is made from them. Errors are the same on every rank.
  Result<std::shared_ptr<const SavePlan>> Plan(std::string_view tag,
                                               std::span<const RoleState> roles,
                                               const Contents& contents,
                                               std::chrono::milliseconds deadline);
  // The last plan, if this rank's state is still the one that it was made for. Not collective: on
  // another rank it may have changed.
  std::shared_ptr<const SavePlan> Likely(std::span<const RoleState> roles,
                                         const Contents& contents) const;
  // There is no last plan any more.
  void Forget();

 private:
  Result<SavePlan> Make(std::string_view tag, std::span<const RoleState> roles,
                        const Contents& contents, std::chrono::milliseconds deadline);
  Coordinator& coordinator_;
  const int64_t smallest_part_;
  std::shared_ptr<const SavePlan> cached_;
  uint64_t cached_key_ = 0;  // 0: none
  uint64_t own_key_ = 0;     // of this rank's state
};

}  // namespace keel::checkpoint
