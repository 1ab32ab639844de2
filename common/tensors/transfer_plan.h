// TransferPlan: what goes from one layout's memory to another's.
//
// From the shard tables of layout A and of layout B it lists (source, source box, destination,
// destination box) and proves that each destination element is covered exactly once: for weight
// sync and the reading of Hugging Face models. ChooseWriters is a save's part. A load and a reshard
// plan on indexes, in checkpoint/; all are held to transfer_check.h. Pure: the same tables give the
// same plan on every rank. See docs/architecture.md.
#pragma once

#include <cstdint>
#include <limits>
#include <span>
#include <string>
#include <vector>

#include "common/tensors/shard_table.h"

namespace keel {

struct Transfer {
  int source = 0;        // index into the source tables
  int source_shard = 0;  // index into that table's shards()
  int destination = 0;
  int destination_shard = 0;
  Box box;  // global coordinates, inside both shards' boxes
};

struct TransferOptions {
  // Canonical tensors of the destination that the source may lack (fnmatch patterns). Elements of
  // these that no source has stay untouched. Empty: everything must be there.
  std::vector<std::string> allow_missing;
  // Source tensors that no destination wants are an error unless this is set.
  bool allow_unused = true;
  // A dtype that differs between source and destination is an error unless this is set; the
  // executor then converts.
  bool allow_dtype_change = false;
};

struct TransferPlan {
  std::vector<Transfer> transfers;  // sorted by (destination, destination_shard, box offset)
  std::vector<int64_t> bytes_from;  // per source table
  std::vector<int64_t> bytes_to;    // per destination table
};

// Replicated source boxes are read once per destination; among replicas the source with the fewest
// bytes so far is taken. With as many destinations as sources these are taken for the same ranks:
// what a destination holds itself comes first. Errors: kInvalidData with the full list of tensors
// that are missing, of another shape or dtype, or not covered.
Result<TransferPlan> PlanTransfer(std::span<const ShardTable> sources,
                                  std::span<const ShardTable> destinations,
                                  const TransferOptions& options = {});

// The proof on its own: every destination element is covered exactly once by the plan; at most once
// where it may be missing. kInternal or kInvalidData says where.
Status CheckPlan(const TransferPlan& plan, std::span<const ShardTable> sources,
                 std::span<const ShardTable> destinations, const TransferOptions& options);

// A shard that a rank writes, or some rows of it: along the first of its dims that has several.
struct ShardPart {
  int shard = 0;      // index into the table's shards()
  int64_t first = 0;  // row
  int64_t rows = 0;   // 0: the whole shard
};
Box BoxOf(const Shard& shard, const ShardPart& part);

// What is written together: each rank's table of a part of the state, all of the same ranks.
struct WriterScope {
  std::string name;  // stands before what is wrong with it, unless empty
  std::span<const ShardTable> ranks;
};
// Who writes what, by scope and by rank, with ascending shards.
using Writers = std::vector<std::vector<std::vector<ShardPart>>>;

inline constexpr int64_t kNeverCut = std::numeric_limits<int64_t>::max();

// Which rank writes what: every distinct box of the global state exactly once, replicas balanced by
// bytes over all scopes. Proves that the boxes of each tensor cover it exactly. Where whole boxes
// would leave a rank with far more than the mean, large ones are cut between the ranks that hold
// them, into parts of no less than `smallest_part` bytes. The same on every rank.
Result<Writers> ChooseWriters(std::span<const WriterScope> scopes, int64_t smallest_part);
// Of one scope, in whole boxes, as tables with the views of that rank's own one.
Result<std::vector<ShardTable>> AssignWriters(std::span<const ShardTable> ranks);

}  // namespace keel
