// WeightSync: moves the trainer's weights into the rollout's, shard to shard, and proves that they
// arrived.
//
// The plan is made once from all ranks' shard tables; each Run replays it in rounds of bounded
// memory. What a rank holds itself is copied there; the rest goes by all-to-all, and large pieces
// in host memory by messages of their own, straight from and into the weights where those are one
// run of memory. Afterwards the digest of every full tensor is taken from the receivers' memory and
// compared with the trainer's. Used from one thread; everything is collective over the world group.
#pragma once

#include <ATen/ATen.h>

#include <cstdint>
#include <string>
#include <utility>
#include <vector>

#include "common/status.h"
#include "common/tensors/shard_table.h"
#include "common/tensors/transfer_plan.h"
#include "parallel/groups/process_group.h"

namespace keel::trainer {

struct WeightSyncOptions {
  // Of what a rank sends, and of what it receives, in one round: two such buffers are all the
  // memory that a sync takes. Larger tensors go in pieces.
  int64_t bucket_bytes = int64_t{2048} << 20;
  // Pieces of so many bytes or more are messages of their own. Host memory alone.
  int64_t direct_bytes = int64_t{256} << 10;
  at::Device device = at::kCPU;  // of the views
};

struct WeightSyncReport {
  uint64_t digest = 0;       // of all tensors together (trainer/engine/weights_digest.h)
  int64_t sent_bytes = 0;    // by this rank to others
  int64_t copied_bytes = 0;  // within this rank
  int64_t rounds = 0;
  int64_t buffer_bytes = 0;     // this rank's, at most
  double exchange_seconds = 0;  // copies, packing, and the wire
  double digest_seconds = 0;    // the proof
  double seconds = 0;           // of both, device-synchronised
};

class WeightSync {
 public:
  // `trainer` and `rollout`: this rank's tables; views are not looked at. `replica` is the number
  // of the rollout replica that this rank belongs to, of `replicas`: each holds the whole model.
  // Throws Error(kInvalidData) with every tensor that is missing, extra or of another shape.
  WeightSync(parallel::ProcessGroup& world, const ShardTable& trainer, const ShardTable& rollout,
             int replica, int replicas, const WeightSyncOptions& options);

  // Every shard of every rank's rollout lies as such in its own trainer's table: the rollout can
  // use the trainer's memory.
  bool coincides() const { return coincides_; }

  // Tables of the same shards, with views of options.device. kDataLoss names a tensor whose digests
  // differ and the replica; kDeadlineExceeded and kUnavailable a peer that is lost. After an error
  // `rollout` holds parts of both versions.
  Result<WeightSyncReport> Run(const ShardTable& trainer, const ShardTable& rollout);

 private:
  // Of a transfer, small enough for a bucket.
  struct Piece {
    int source = 0;
    int destination = 0;
    int source_shard = 0;
    int destination_shard = 0;
    Box box;
    int64_t bytes = 0;
    int64_t slot = 0;      // bytes in a buffer: `bytes`, aligned for every dtype
    int64_t message = -1;  // number of its own message; -1: it goes by all-to-all
  };
  using Round = std::vector<Piece>;  // by source, then destination, then plan order

  void CutIntoRounds(const TransferPlan& plan, const std::vector<ShardTable>& destinations);
  // Bytes of buffers for what this rank sends, and receives, in any round.
  std::pair<int64_t, int64_t> BufferBytes(const ShardTable& trainer,
                                          const ShardTable& rollout) const;
  // `in` and `out` are the buffers of all rounds.
  void Exchange(const Round& round, const ShardTable& trainer, const ShardTable& rollout,
                const at::Tensor& in, const at::Tensor& out, WeightSyncReport* report);
  // Unlike those of a run that failed.
  int TagOf(const Piece& piece) const;
  at::Tensor ViewOf(const ShardTable& table, int shard, const Box& box) const;
  // This rank's share of the sums, [tensors] of `names_`.
  void AddDigests(const ShardTable& assigned, const ShardTable& views, int64_t* sums) const;

  parallel::ProcessGroup& world_;
  const WeightSyncOptions options_;
  const int replica_;
  const int replicas_;
  uint64_t trainer_layout_ = 0;  // fingerprints
  uint64_t rollout_layout_ = 0;
  bool coincides_ = false;
  std::vector<std::string> names_;  // of all tensors, sorted
  ShardTable trainer_share_;        // boxes whose digest this rank takes: each box once over ranks
  ShardTable rollout_share_;        // the same over the ranks of its replica
  std::vector<Piece> local_;
  std::vector<Round> rounds_;
  int64_t runs_ = 0;
};

}  // namespace keel::trainer
