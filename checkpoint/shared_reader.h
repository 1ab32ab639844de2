// SharedReader: a checkpoint is read once by all ranks together, and each gets what it needs.
//
// A rank reads the chunks that the schedule gives it, verifies them, keeps its own part and hands
// the others theirs, in rounds of bounded memory: while one round is under way, the next is read.
// One per load and rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string_view>
#include <vector>

#include "checkpoint/peer_channel.h"
#include "checkpoint/read_plan.h"
#include "checkpoint/read_schedule.h"
#include "checkpoint/step_reader.h"
#include "common/status.h"

namespace keel::checkpoint {

struct SharedReadResult {
  ReadStats stats;
  // This rank's own failure: damage in what it read, or a peer that is gone.
  Status status;
  bool peer_lost = false;  // `status` is the channel's, which is broken now
  bool peer_stopped =
      false;  // another rank failed and says why elsewhere; nothing here is complete
};

class SharedReader {
 public:
  // All must outlive this. `deadline`: of every exchange with peers.
  SharedReader(const StepReader& reader, const ReadPlan& plan, const ReadSchedule& schedule,
               PeerChannel& channel, int threads, std::chrono::milliseconds deadline);
  ~SharedReader();

  // Collective. A failure on one rank ends the work of all, without a hang.
  SharedReadResult Run();

 private:
  struct Given;
  struct Round;
  struct PeerNeeds;
  struct Incoming;

  Status ExchangeNeeds();
  Status ParseNeeds(int peer, std::string_view text);
  void LayOut(size_t number, Round* round);
  bool SameNeeds(size_t a, size_t b, ChunkId id) const;
  Status ReadRound(Round* round);
  Status ExchangeRound(size_t number, Round* round, bool* stop);

  const StepReader& reader_;
  const ReadPlan& plan_;
  const ReadSchedule& schedule_;
  PeerChannel& channel_;
  const int threads_;
  const std::chrono::milliseconds deadline_;
  StepReader::OpenFiles files_;
  std::vector<PeerNeeds> peers_;              // by rank
  std::vector<ChunkId> local_;                // that this rank reads for itself alone
  std::vector<std::vector<ChunkId>> given_;   // by rank: what it hands on, in order
  std::vector<size_t> next_given_;            // by rank: the first of these of the next exchange
  size_t laid_out_ = 0;                       // of this rank's: how many have been read, or are
  std::vector<StepReader::Scratch> scratch_;  // by thread
  std::unique_ptr<Incoming> incoming_;        // parts that do not fit their place as they come
  int64_t received_ = 0;
};

}  // namespace keel::checkpoint
