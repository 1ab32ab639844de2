// ReadPlan: what a rank needs of a checkpoint's files, and where each part of it goes.
//
// The load's own plan, from the index of what was saved and the tables of what is wanted, with the
// proof that each wanted element is filled exactly once (common/tensors/transfer_check.h). It names
// saved boxes by their record in the index: a million of them take 48 MB.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "checkpoint/format/index.h"
#include "checkpoint/read/box_runs.h"
#include "checkpoint/read/piece_list.h"
#include "common/status.h"
#include "common/tensors/shard_table.h"

namespace keel::checkpoint {

// What a read asks for: views of tensors of one scope ("actor/model").
struct ReadRequest {
  std::string scope;
  const ShardTable* destination = nullptr;  // views say where values go
  // Tensors that the checkpoint may lack, or have in another shape or dtype (fnmatch patterns).
  // Elements of these that it does not have stay untouched.
  std::vector<std::string> allow_missing;
};

// Immutable and thread-safe once made.
class ReadPlan {
 public:
  // `index` and the requests' tables must outlive this. kInvalidData lists, by kind, every tensor
  // that is missing, of another shape or dtype, or not covered.
  static Result<ReadPlan> Make(const Index& index, std::span<const ReadRequest> requests);

  const PieceList& pieces() const { return pieces_; }
  // The runs of a piece, in bytes from the start of the saved box's data, and from Target().
  BoxRuns RunsOf(const Piece& piece) const;
  std::byte* TargetOf(const Piece& piece) const { return ShardOf(piece).view.data; }
  const Box& WantedBoxOf(const Piece& piece) const { return ShardOf(piece).box; }
  // Returns where the saved box's data begin in its file.
  int64_t BaseOf(const Piece& piece) const { return index_->box_begin(piece.box); }

  // Copies what is wanted of `bytes`, which begin at `begin` of a file.
  void Scatter(int file, int64_t begin, std::span<const std::byte> bytes) const;
  // Says how many of bytes [begin, end) of a file are wanted.
  int64_t BytesIn(int file, int64_t begin, int64_t end) const;
  // Returns where bytes [begin, end) of a file go, when they are all wanted, once, and stay
  // together; null otherwise.
  std::byte* WholeTarget(int file, int64_t begin, int64_t end) const;

  // Shards of which the checkpoint lacks elements, and may: (request, shard).
  std::span<const std::pair<int, int>> uncovered() const { return uncovered_; }
  // By tensor of the index: whether a request mentions it.
  const std::vector<bool>& wanted_tensors() const { return wanted_tensors_; }

 private:
  // Whether the saved boxes fill the shard.
  Result<bool> AddShard(const IndexTensor& saved, int32_t request, int32_t shard, bool may_lack);
  const Shard& ShardOf(const Piece& piece) const {
    return tables_[static_cast<size_t>(piece.list)]->shards()[static_cast<size_t>(piece.wanted)];
  }

  const Index* index_ = nullptr;
  std::vector<const ShardTable*> tables_;
  PieceList pieces_;
  std::vector<std::pair<int, int>> uncovered_;
  std::vector<bool> wanted_tensors_;
};

// A run of chunks of which a rank needs about as much each.
struct ChunkNeed {
  int32_t file = 0;
  int32_t eighths = 0;  // of a chunk, rounded up, 1 to 8
  int64_t first = 0;
  int64_t count = 0;
};

// By file and first chunk.
std::vector<ChunkNeed> NeedsOf(const ReadPlan& plan, const Index& index);

}  // namespace keel::checkpoint
