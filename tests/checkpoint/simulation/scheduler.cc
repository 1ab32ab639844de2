#include "tests/checkpoint/simulation/scheduler.h"

#include <algorithm>
#include <stdexcept>
#include <utility>

namespace keel::checkpoint::testing {
namespace {

constexpr SimTime kNever = SimTime::max();

}  // namespace

std::chrono::system_clock::time_point Scheduler::Wall() const {
  return std::chrono::system_clock::time_point(std::chrono::hours(24 * 365 * 56)) +
         std::chrono::duration_cast<std::chrono::system_clock::duration>(now_) + wall_offset_;
}

void Scheduler::Push(SimTime when, size_t task, std::function<void()> action) const {
  events_.push({std::max(when, now_), pushed_++, task, task == kNoTask ? 0 : tasks_[task].wait,
                std::move(action)});
}

size_t Scheduler::Spawn(SimProcess& process, std::function<void()> body) {
  tasks_.push_back({std::make_unique<Fiber>(stacks_, std::move(body)), &process});
  Push(now_, tasks_.size() - 1);
  return tasks_.size() - 1;
}

void Scheduler::At(SimTime when, std::function<void()> action) {
  Push(when, kNoTask, std::move(action));
}

int Scheduler::Run() {
  while (!events_.empty()) {
    const Event event = events_.top();
    events_.pop();
    if (event.task == kNoTask) {
      now_ = event.when;
      event.action();
      continue;
    }
    if (tasks_[event.task].wait != event.wait || tasks_[event.task].fiber == nullptr) continue;
    now_ = event.when;
    ++tasks_[event.task].wait;
    ++switches_;
    running_ = event.task;
    Fiber& fiber = *tasks_[event.task].fiber;
    fiber.Resume();
    running_ = kNoTask;
    if (!fiber.ended()) continue;
    tasks_[event.task].fiber.reset();
    Open(tasks_[event.task].ended);
  }
  int waiting = 0;
  for (const Task& task : tasks_) waiting += task.fiber != nullptr ? 1 : 0;
  if (waiting == 0) tasks_.clear();
  return waiting;
}

void Scheduler::Kill(SimProcess& process) {
  process.dead = true;
  for (size_t i = 0; i < tasks_.size(); ++i) {
    if (tasks_[i].fiber != nullptr && tasks_[i].process == &process && i != running_) Push(now_, i);
  }
}

// A later event for the same wait finds it over.
void Scheduler::PauseUntil(SimTime when) const {
  if (running_ == kNoTask) throw std::logic_error("only a fiber can wait");
  if (when != kNever) Push(when, running_);
  tasks_[running_].fiber->Pause();
}

void Scheduler::SleepFor(SimTime duration) const {
  if (running_ != kNoTask && tasks_[running_].process->dead) return;
  const SimTime until = now_ + duration;
  // Nobody else has anything to do before.
  if (events_.empty() || events_.top().when > until) {
    now_ = until;
    return;
  }
  PauseUntil(until);
}

bool Scheduler::WaitAt(Gate& gate, SimTime until) {
  const size_t self = running_;
  if (tasks_[self].process->dead) return false;
  gate.waiting_.push_back(self);
  tasks_[self].opened = false;
  PauseUntil(until);
  std::erase(gate.waiting_, self);
  return tasks_[self].opened;
}

void Scheduler::Open(Gate& gate) {
  for (const size_t task : std::exchange(gate.waiting_, {})) {
    tasks_[task].opened = true;
    Push(now_, task);
  }
}

void Scheduler::Join(size_t task) {
  const size_t self = running_;
  while (tasks_[task].fiber != nullptr) {
    tasks_[task].ended.waiting_.push_back(self);
    PauseUntil(kNever);
    std::erase(tasks_[task].ended.waiting_, self);
  }
}

}  // namespace keel::checkpoint::testing
