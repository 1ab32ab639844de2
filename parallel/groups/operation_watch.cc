#include "parallel/groups/operation_watch.h"

#include <future>
#include <utility>

#include "common/guarded.h"

namespace keel::parallel {

OperationWatch::~OperationWatch() {
  {
    const std::lock_guard lock(mutex_);
    ending_ = true;
  }
  changed_.notify_all();
  if (thread_.joinable()) thread_.join();
}

OperationWatch::Id OperationWatch::AddGroup(std::function<void()> abort) {
  const std::lock_guard lock(mutex_);
  if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
  groups_[next_].abort = std::move(abort);
  return next_++;
}

void OperationWatch::RemoveGroup(Id group) {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !aborting_; });
  groups_.erase(group);
}

Status OperationWatch::Drain(Id group) {
  std::unique_lock lock(mutex_);
  while (failure_.ok() && !ending_) {
    const auto found = groups_.find(group);
    if (found == groups_.end() || found->second.pending.empty()) return Status::Ok();
    changed_.wait_for(lock, period_);
  }
  return failure_;
}

void OperationWatch::AbortIfBusy() {
  std::unique_lock lock(mutex_);
  changed_.wait(lock, [this] { return !aborting_; });
  if (aborted_) return;
  if (Status found = Guarded([this] { return Look(); }); !found.ok())
    return AbortAll(lock, std::move(found));
  bool busy = false;
  for (const auto& [id, group] : groups_) busy = busy || !group.pending.empty();
  if (!busy) return;
  AbortAll(lock, Status(StatusCode::kUnavailable,
                        "an operation was under way when this rank left because of an error"));
}

void OperationWatch::Add(Id group, Operation operation) {
  const auto end = std::chrono::steady_clock::now() + operation.deadline;
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  if (found != groups_.end() && failure_.ok())
    found->second.pending.push_back({std::move(operation), end});
}

void OperationWatch::set_at_start(std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  at_start_ = std::move(hook);
}

void OperationWatch::set_abort_together(std::function<void(const Aborts&)> way) {
  const std::lock_guard lock(mutex_);
  abort_together_ = std::move(way);
}

void OperationWatch::set_before_abort(std::function<void()> hook) {
  const std::lock_guard lock(mutex_);
  before_abort_ = std::move(hook);
}

Status OperationWatch::failure() const {
  const std::lock_guard lock(mutex_);
  return failure_;
}

void OperationWatch::Run() {
  std::unique_lock lock(mutex_);
  if (at_start_) (void)Guarded([this] { return at_start_(), Status::Ok(); });
  while (!changed_.wait_for(lock, period_, [this] { return ending_ || aborted_; })) {
    Status found = Guarded([this] { return Look(); });
    if (!found.ok()) AbortAll(lock, std::move(found));
  }
  changed_.wait(lock, [this] { return ending_; });
}

Status OperationWatch::Look() {
  const auto now = std::chrono::steady_clock::now();
  for (auto& [id, group] : groups_) {
    while (!group.pending.empty()) {
      const Pending& oldest = group.pending.front();
      const Result<bool> done = oldest.operation.done();
      if (!done.ok()) return done.status();
      if (!*done) {
        if (now < oldest.end) break;
        return oldest.operation.late();
      }
      group.pending.pop_front();
    }
  }
  return Status::Ok();
}

void OperationWatch::AbortAll(std::unique_lock<std::mutex>& lock, Status why) {
  // 1. What was done before any stream is let go is told from what only seems done after it.
  if (before_abort_) (void)Guarded([this] { return before_abort_(), Status::Ok(); });
  // 2. Whoever returns from a wait because of the abort finds the failure.
  failure_ = std::move(why);
  aborting_ = aborted_ = true;
  Aborts aborts;
  for (auto& [id, group] : groups_) {
    group.pending.clear();
    aborts.push_back(group.abort);
  }
  // 3. Without the lock: it may take long, and others ask for the failure meanwhile.
  const auto together = abort_together_;
  lock.unlock();
  if (together) {
    together(aborts);
  } else {
    std::vector<std::future<void>> ends;  // without a thread for one, get() calls it
    for (const std::function<void()>& abort : aborts) ends.push_back(std::async(abort));
    for (std::future<void>& end : ends) end.get();
  }
  lock.lock();
  aborting_ = false;
  changed_.notify_all();
}

}  // namespace keel::parallel
