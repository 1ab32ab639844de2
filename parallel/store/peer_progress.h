// PeerProgress: ranks wait for each other's work, which takes as long as it takes.
//
// A collective cannot: it takes whoever is still at work for hung. Here who works says every while
// that it goes on, and who waits gives up on a rank that has said nothing for the deadline, by its
// number. Over the job's store; where all are on time, a message to it and a wait a rank.
#pragma once

#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "parallel/store/store.h"

namespace keel::parallel {

class PeerProgress {
 public:
  // `topic`: of the keys, which nobody else has. `store` is a connection of its own (Store::Clone).
  PeerProgress(const Store& store, const std::string& topic, int rank, int world,
               std::chrono::milliseconds deadline);

  // This rank's work of the round goes on: said to the store now and then, so it may be called
  // often, and has to be within the deadline. An error is the store's.
  Status GoesOn();
  // It is done: waits for all others, and begins the next round. kDeadlineExceeded names a rank
  // that has said nothing for the deadline. Collective.
  Status WaitForAll();

 private:
  using Clock = std::chrono::steady_clock;
  // What a rank said last, and when that was new.
  struct Heard {
    std::string said;
    Clock::time_point at;
  };
  std::string Key(int rank) const;
  Status Say();
  // Looks at what the others say.
  Status Listen();

  const Store store_;
  const int rank_;
  const int world_;
  const std::chrono::milliseconds deadline_;
  int64_t round_ = 0;
  int64_t said_ = 0;
  Clock::time_point last_ = Clock::now();
  std::map<int, Heard> heard_;  // by rank, of those that are not done
};

}  // namespace keel::parallel
