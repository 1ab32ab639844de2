#include "parallel/groups/operation_watch.h"

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
  changed_.wait(lock, [&] { return aborting_ != group; });
  groups_.erase(group);
}

void OperationWatch::Add(Id group, Operation operation) {
  const auto end = std::chrono::steady_clock::now() + operation.deadline;
  const std::lock_guard lock(mutex_);
  const auto found = groups_.find(group);
  if (found != groups_.end() && failure_.ok())
    found->second.pending.push_back({std::move(operation), end});
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
  while (!changed_.wait_for(lock, period_, [this] { return ending_; })) {
    Status found = Guarded([this] { return Look(); });
    if (found.ok()) continue;
    // 1. What was done before any stream is let go is told from what only seems done after it.
    if (before_abort_) before_abort_();
    // 2. Whoever returns from a wait because of the abort finds the failure.
    failure_ = std::move(found);
    AbortAll(lock);
    changed_.wait(lock, [this] { return ending_; });
    return;
  }
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

// Without the lock: an abort may take long, and others ask for the failure meanwhile.
void OperationWatch::AbortAll(std::unique_lock<std::mutex>& lock) {
  Id last = -1;
  for (auto group = groups_.upper_bound(last); group != groups_.end();
       group = groups_.upper_bound(last)) {
    last = group->first;
    group->second.pending.clear();
    aborting_ = last;
    lock.unlock();
    group->second.abort();
    lock.lock();
    aborting_ = -1;
    changed_.notify_all();
  }
}

}  // namespace keel::parallel
