// FarExchange: parts of chunks that travel over the PeerChannel, to ranks that cannot read this
// rank's memory.
//
// In the rounds of the schedule, of bounded memory. Each pair of far ranks goes on until one of
// them says that it stops. One per load and rank.
#pragma once

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "checkpoint/base/peer_channel.h"
#include "checkpoint/read/read_plan.h"
#include "checkpoint/read/read_schedule.h"
#include "checkpoint/read/step_reader.h"
#include "common/memory/page_memory.h"
#include "common/status.h"

namespace keel::checkpoint {

class FarExchange {
 public:
  // All must outlive this. `given`: the chunks that each rank hands on, in order. `slots`: as many
  // of this rank's are kept at a time; chunk n is read when chunk n - slots has had its round.
  FarExchange(const StepReader& reader, const ReadPlan& plan, const ReadSchedule& schedule,
              const std::vector<std::vector<ChunkId>>& given, PeerChannel& channel, int64_t slots,
              std::chrono::milliseconds deadline);
  ~FarExchange();

  // Collective: each rank tells its far peers what it wants of their chunks.
  Status Begin(std::vector<bool> far);
  bool any() const { return any_; }

  // Where chunk number `n` of this rank's is read to, if there is any far peer.
  std::byte* Memory(int64_t n) const;
  // It has been read and verified. Thread-safe for different chunks.
  void Pack(int64_t n);
  // How many of this rank's chunks the rounds up to this one hand on.
  int64_t EndOf(size_t round) const { return ends_[round]; }
  // Collective with the far peers that go on. With `stop` nothing that is handed on counts, and
  // Pack need not have been called. What comes is copied to its place, unless a peer stops.
  struct RoundResult {
    Status status;  // of the channel
    bool peer_stopped = false;
  };
  RoundResult Round(size_t round, bool stop);
  int64_t received() const { return received_; }

 private:
  struct PeerNeeds;
  struct Given;
  struct Arrival;

  // What this rank wants of each peer's chunks, as ParseNeeds reads it; "" of those that are asked
  // for nothing.
  std::vector<std::string> Needs() const;
  Status ExchangeNeeds(const std::vector<std::string>& texts);
  Status ParseNeeds(int peer, std::string_view text);
  Given* LayOut(int64_t n);
  bool SameNeeds(size_t a, size_t b, ChunkId id) const;
  void Place(const Arrival& arrival) const;

  const StepReader& reader_;
  const ReadPlan& plan_;
  const ReadSchedule& schedule_;
  const std::vector<std::vector<ChunkId>>& chunks_;
  PeerChannel& channel_;
  const std::chrono::milliseconds deadline_;
  bool any_ = false;
  std::vector<bool> far_;                  // by rank
  std::vector<bool> goes_on_;              // far, and has not stopped
  std::vector<PeerNeeds> peers_;           // by rank
  std::vector<int64_t> ends_;              // by round
  std::vector<size_t> next_;               // by rank: its first chunk of the next round
  std::vector<Given> given_;               // by slot
  PageMemory memory_;                      // of these
  std::unique_ptr<std::byte[]> incoming_;  // parts that do not fit their place as they come
  int64_t incoming_bytes_ = 0;
  int64_t received_ = 0;
};

}  // namespace keel::checkpoint
