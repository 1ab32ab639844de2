// CommitProtocol: who does what, in which order, when all ranks save one step together.
//
// A state machine without threads, clock or I/O: it is told what happened and answers what to do
// next. Saver performs the actions on a real disk and store; the simulation in
// tests/checkpoint/simulation_test.cc performs them on a simulated one, from a seed.
//
//   rank 0                                        rank r
//   begin: save id, temporary directory           wait for the order
//   send the order              ---------------->
//   write its files, fsync                        write its files, fsync
//   wait for all reports        <----------------  send the report
//   publish: manifest last, rename, fsync, look   wait for the outcome
//   send the outcome            ---------------->  done
//   conclude: tracker, retention
//
// A failure anywhere becomes the outcome of this save on every rank, and nothing is published. Rank
// 0 tells it at once, but removes the temporary directory only when nobody writes into it any more.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"

namespace keel::checkpoint {

enum class Message { kOrder, kReport, kOutcome };
std::string_view MessageName(Message message);  // "order", "report", "outcome"

class CommitProtocol {
 public:
  static constexpr int kEveryPeer = -1;

  // What happened. Each action but kSend and kAbort is answered by exactly one event.
  struct Event {
    enum class Kind {
      kStart,      // once, first
      kBegun,      // after kBegin: payload is the order
      kReceived,   // after kReceive: the peer's status and payload, or why nothing came
      kWritten,    // after kWrite: payload is the report
      kPublished,  // after kPublish: payload is the outcome
      kConcluded,  // after kConclude
    };
    Kind kind = Kind::kStart;
    Status status;
    std::string payload;
  };

  // What to do next, in this order.
  struct Action {
    enum class Kind {
      kBegin,     // rank 0: make the temporary directory
      kWrite,     // write this rank's files as the order (payload) says
      kPublish,   // rank 0: make the step visible; reports() has what the ranks wrote
      kConclude,  // rank 0: tracker, retention; can no longer fail the save
      kAbort,     // rank 0: remove the temporary directory
      kSend,      // status and payload to `peer`
      kReceive,   // from `peer`, within the deadline
      kFinish,    // the end: `status` is the outcome of the save, payload rank 0's outcome
    };
    Kind kind = Kind::kFinish;
    int peer = 0;
    Message message = Message::kOrder;
    Status status;
    std::string payload;
  };

  CommitProtocol(int rank, int world) : rank_(rank), world_(world) {}

  std::vector<Action> On(const Event& event);
  bool finished() const { return state_ == State::kDone; }
  // Rank 0, from kPublish on: every rank's report, in rank order.
  const std::vector<std::string>& reports() const { return reports_; }

 private:
  enum class State {
    kIdle,
    kBeginning,
    kAwaitingOrder,
    kWriting,
    kCollecting,       // rank 0: receives reports
    kPublishing,       // rank 0
    kConcluding,       // rank 0
    kAwaitingOutcome,  // others
    kDone,
  };
  std::vector<Action> OnLeader(const Event& event);
  std::vector<Action> OnFollower(const Event& event);
  // Rank 0: the next report, or what follows the last one.
  std::vector<Action> Collect();
  void Fail(const Status& status, std::vector<Action>* actions);
  std::vector<Action> Finish(std::vector<Action> actions, Status status, std::string payload = {});

  const int rank_;
  const int world_;
  State state_ = State::kIdle;
  int next_ = 1;  // rank 0: whose report comes next
  std::vector<std::string> reports_;
  Status failure_;  // rank 0: the first one
};

}  // namespace keel::checkpoint
