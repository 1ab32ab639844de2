// Scheduler: virtual time, and fibers that take turns in it.
//
// What happens next follows from times alone, and among equal times from the order in which they
// were asked for; a run is therefore the same each time. A fiber belongs to a process, and a
// process can die: its fibers then stop waiting for anything, at once and for ever, so that they
// come to their ends; whatever they try on the way must fail (see Process::dead).
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <queue>
#include <tuple>
#include <vector>

#include "common/clock.h"
#include "tests/checkpoint/simulation/fiber.h"

namespace keel::checkpoint::testing {

using SimTime = std::chrono::nanoseconds;

struct SimProcess {
  int rank = 0;
  bool dead = false;
};

class Scheduler final : public Clock {
 public:
  explicit Scheduler(FiberStacks& stacks) : stacks_(stacks) {}

  // A place where fibers wait for something to be so.
  class Gate {
    friend class Scheduler;
    std::vector<size_t> waiting_;  // fibers
  };

  // `process` must outlive the fiber. The number names it.
  size_t Spawn(SimProcess& process, std::function<void()> body);
  // `action` must not wait.
  void At(SimTime when, std::function<void()> action);
  // Until nothing is left that could happen. Returns how many fibers wait for what never comes.
  int Run();
  void Kill(SimProcess& process);

  // From a fiber. Sleeping ends early when its process dies.
  void SleepFor(SimTime duration) const override;
  // Until someone opens the gate: true. False when the time has come, or the process dies.
  bool WaitAt(Gate& gate, SimTime until);
  void Open(Gate& gate);
  // Until that fiber has ended. Goes on waiting when the process dies, for both end then.
  void Join(size_t task);

  SimTime Monotonic() const override { return now_; }
  std::chrono::system_clock::time_point Wall() const override;
  // Of the wall clock alone.
  void JumpWall(std::chrono::seconds by) { wall_offset_ += by; }
  int64_t switches() const { return switches_; }

 private:
  struct Task {
    std::unique_ptr<Fiber> fiber;
    SimProcess* process = nullptr;
    uint64_t wait = 0;  // counts its waits: an event for an earlier one is void
    bool opened = false;
    Gate ended{};
  };
  struct Event {
    SimTime when{};
    uint64_t order = 0;
    size_t task = 0;
    uint64_t wait = 0;
    std::function<void()> action;               // instead of a task
    bool operator<(const Event& other) const {  // the queue gives the greatest first
      return std::tie(when, order) > std::tie(other.when, other.order);
    }
  };
  static constexpr size_t kNoTask = ~size_t{0};
  void Push(SimTime when, size_t task, std::function<void()> action = {}) const;
  void PauseUntil(SimTime when) const;

  FiberStacks& stacks_;
  mutable SimTime now_{};
  std::chrono::seconds wall_offset_{};
  mutable std::priority_queue<Event> events_;
  mutable uint64_t pushed_ = 0;
  mutable std::vector<Task> tasks_;
  size_t running_ = kNoTask;
  int64_t switches_ = 0;
};

}  // namespace keel::checkpoint::testing
