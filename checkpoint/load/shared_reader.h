// SharedReader: a checkpoint is read once by all ranks together, and each gets what it needs.
//
// A rank reads the chunks that the schedule gives it, verifies them, keeps its own part and hands
// on the rest. Near peers copy theirs out of its memory, block by block while a chunk is read; the
// last block of it is handed on when it is verified, and is waited for by all who need any of it,
// so that nobody ends with a chunk that was not (block_ring.h). Far peers get theirs over the
// channel, by verified chunks (far_exchange.h). One per load and rank.
#pragma once

#include <chrono>
#include <condition_variable>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <mutex>
#include <optional>
#include <set>
#include <thread>
#include <vector>

#include "checkpoint/base/peer_channel.h"
#include "checkpoint/load/block_ring.h"
#include "checkpoint/load/far_exchange.h"
#include "checkpoint/read/read_plan.h"
#include "checkpoint/read/read_schedule.h"
#include "checkpoint/read/step_reader.h"
#include "common/status.h"

namespace keel::checkpoint {

struct SharedReadOptions {
  int threads = 2;           // that read, verify and copy
  bool share_memory = true;  // with near peers; false: all that is exchanged goes over the channel
  std::chrono::milliseconds deadline{120'000};  // of every wait for a peer
};

struct SharedReadResult {
  ReadStats stats;
  // This rank's own failure: damage in what it read, or a peer that is gone.
  Status status;
  bool peer_lost = false;  // `status` says who; the channel is of no use any more
  bool peer_stopped =
      false;  // another rank failed and says why elsewhere; nothing here is complete
};

class SharedReader {
 public:
  // All must outlive this.
  SharedReader(const StepReader& reader, const ReadPlan& plan, const ReadSchedule& schedule,
               PeerChannel& channel, const SharedReadOptions& options);
  ~SharedReader();

  // Collective. A failure on one rank ends the work of all, without a hang.
  SharedReadResult Run();

 private:
  // Numbers from 0 on that are done in any order.
  class Prefix {
   public:
    // Counts one as done. Returns how many there are without a gap.
    int64_t Add(int64_t number);

   private:
    int64_t count_ = 0;
    std::set<int64_t> later_;
  };
  // A near peer, and what this rank takes from it.
  struct Source {
    int peer = 0;
    // Of the peer's blocks those that are not taken yet. Chunk number n of a rank's given ones has
    // the numbers from n * blocks_per_chunk_ on.
    std::vector<bool> wanted;
    int64_t left = 0;  // of these
    int64_t next = 0;  // of its entries
    int copying = 0;   // blocks that threads are at
    Prefix taken;      // of its entries
    // For whether it lives.
    uint64_t beats = 0;
    std::chrono::nanoseconds silent{0};
  };
  // How a thread waits for what it can only look at.
  struct Patience {
    int yields = 0;
    std::chrono::microseconds pause{0};
  };
  enum class Work { kDone, kNone, kOver };

  Status Begin(bool share);
  Source SourceFor(int peer) const;
  void Rounds(std::vector<std::thread>* helpers);
  void WorkLoop(size_t worker);
  Work WorkOnce(size_t worker, std::unique_lock<std::mutex>* lock);

  // With the lock, which they give up while they are at it.
  bool TakeBlock(std::unique_lock<std::mutex>* lock);
  void CopyBlock(Source* source, int64_t entry, const BlockRing::Entry& block,
                 std::unique_lock<std::mutex>* lock);
  void ReadGiven(size_t worker, std::unique_lock<std::mutex>* lock);
  void ReadLocal(size_t worker, std::unique_lock<std::mutex>* lock);
  void Wait(Patience* patience, std::unique_lock<std::mutex>* lock);
  // Without it.
  Status ReadGivenChunk(size_t worker, int64_t number);
  Result<std::byte*> AcquireSlot();
  void TakeBlocks();

  // With the lock.
  void Skip(Source* source, int64_t entry);
  bool WaitsFor(const Source& source) const;
  void WatchPeers();
  void Fail(ChunkId id, Status status);
  void Lose(Status status);
  void StopAll();

  const StepReader& reader_;
  const ReadPlan& plan_;
  const ReadSchedule& schedule_;
  PeerChannel& channel_;
  const SharedReadOptions options_;
  StepReader::OpenFiles files_;
  std::vector<StepReader::Scratch> scratch_;  // by worker
  std::vector<ChunkId> local_;                // that this rank reads for itself alone
  std::vector<std::vector<ChunkId>> given_;   // by rank: what it hands on, in order
  int64_t kept_for_far_ = 0;                  // chunks of this rank's at a time
  const int64_t block_bytes_;
  const int64_t blocks_per_chunk_;
  std::optional<FarExchange> far_;
  std::unique_ptr<BlockRing> ring_;

  std::mutex mutex_;  // of all below
  std::condition_variable changed_;
  enum class Phase { kBegin, kWork, kQuit } phase_ = Phase::kBegin;
  std::vector<Source> sources_;
  size_t turn_ = 0;  // of the sources
  size_t next_given_ = 0, next_local_ = 0;
  Prefix verified_;
  int64_t ready_ = 0;       // of this rank's chunks: the first that are verified, all of them
  int64_t handed_far_ = 0;  // those whose round is over
  int slot_waiters_ = 0;    // threads
  std::chrono::steady_clock::time_point watched_, looked_;
  bool stop_ = false;
  ChunkId failed_at_;
  SharedReadResult result_;
};

}  // namespace keel::checkpoint
