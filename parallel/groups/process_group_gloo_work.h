// Operations of gloo under way: named when they fail, and ended when a peer is lost.
//
// gloo tells the loss of a connection to the operations that are posted on it, but not to the one
// that is half way through: that one would wait until its deadline. So a wait that takes long asks
// for itself: a receive on a lost connection is refused at once, with the cause. On one that holds
// it stays unanswered, and costs both sides some 40 bytes for as long as the group lives. Of a
// group that somebody else may give up (link_group.h) every wait looks for that, too.
#pragma once

#include <chrono>
#include <condition_variable>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

#include <torch/csrc/distributed/c10d/ProcessGroupGloo.hpp>

#include "parallel/groups/process_group_backend.h"

namespace keel::parallel {

// What the wait of a group says that was given up.
inline constexpr char kGivenUp[] = "it was given up";
// Between two looks at whether a group was.
inline constexpr std::chrono::milliseconds kLook(250);

// All ranks of the group take part. `gloo` and `where` outlive it.
class CollectiveWork final : public Work {
 public:
  CollectiveWork(c10::intrusive_ptr<c10d::Work> work, c10d::ProcessGroupGloo& gloo,
                 const WhereInGroup& where, const char* operation)
      : work_(std::move(work)), gloo_(gloo), where_(where), operation_(operation) {}
  void Wait() override;

 private:
  void WaitAndProbe();
  // False when it is still under way after `limit`.
  bool Ended(std::chrono::milliseconds limit);

  c10::intrusive_ptr<c10d::Work> work_;
  c10d::ProcessGroupGloo& gloo_;
  const WhereInGroup& where_;
  const char* operation_;
};

// Ends waits for messages from or to peers that are lost. gloo cannot wait for a message by
// instalments, so a thread asks meanwhile; it starts with the first message.
class MessageWatch {
 public:
  // `gloo` and `where` outlive it.
  MessageWatch(c10d::ProcessGroupGloo& gloo, const WhereInGroup& where)
      : gloo_(gloo), where_(where) {}
  ~MessageWatch();
  // Waits for the message. Throws what gloo throws, or why the peer is lost.
  void Wait(c10d::Work& work, int peer, std::chrono::milliseconds deadline);

 private:
  struct Watched {
    c10d::Work* work;
    int peer;
    std::chrono::steady_clock::time_point next;  // probe
    std::chrono::seconds pause;
    std::exception_ptr lost;
  };
  void Run();

  c10d::ProcessGroupGloo& gloo_;
  const WhereInGroup& where_;
  std::mutex mutex_;  // a probe holds it: the waiting thread issues nothing meanwhile
  std::condition_variable stopping_;
  bool stop_ = false;
  std::vector<Watched*> watched_;
  std::thread thread_;
};

// From one rank to another. `watch` and `where` outlive it.
class MessageWork final : public Work {
 public:
  MessageWork(c10::intrusive_ptr<c10d::Work> work, int peer, MessageWatch& watch,
              const WhereInGroup& where, const char* operation)
      : work_(std::move(work)), peer_(peer), watch_(watch), where_(where), operation_(operation) {}
  void Wait() override;

 private:
  c10::intrusive_ptr<c10d::Work> work_;
  int peer_;
  MessageWatch& watch_;
  const WhereInGroup& where_;
  const char* operation_;
};

}  // namespace keel::parallel
