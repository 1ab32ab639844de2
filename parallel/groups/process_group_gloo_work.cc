#include "parallel/groups/process_group_gloo_work.h"

#include <fmt/format.h>

#include <algorithm>
#include <limits>
#include <stdexcept>

namespace keel::parallel {

namespace {

constexpr std::chrono::seconds kFirstProbe(4);  // doubles from probe to probe
constexpr std::chrono::seconds kLastProbe(32);
// An operation may have ended for a peer that then left in good order; its own end is this near.
constexpr std::chrono::seconds kLeave(3);
constexpr int kProbeTag = std::numeric_limits<int>::max();

// Throws where the connection to `peer` is lost.
void Probe(c10d::ProcessGroupGloo& gloo, int peer) {
  std::vector<at::Tensor> tensors{at::empty({1})};
  gloo.recv(tensors, peer, kProbeTag);
}

void ProbeAll(c10d::ProcessGroupGloo& gloo) {
  for (int peer = 0; peer < gloo.getSize(); ++peer) {
    if (peer != gloo.getRank()) Probe(gloo, peer);
  }
}

}  // namespace

void CollectiveWork::Wait() {
  try {
    WaitAndProbe();
  } catch (const std::exception& error) {
    where_.Rethrow(operation_, error);
  }
}

void CollectiveWork::WaitAndProbe() {
  using std::chrono::milliseconds;
  using Clock = std::chrono::steady_clock;
  const auto end = Clock::now() + where_.deadline;
  milliseconds pause = kFirstProbe;
  auto probe = Clock::now() + pause;
  while (true) {
    const auto now = Clock::now();
    const auto next = where_.given_up == nullptr ? probe : std::min(probe, now + kLook);
    const milliseconds wait = LimitOf(std::min(end, next) - now);
    if (end <= next) {
      work_->wait(wait);
      return;
    }
    if (Ended(wait)) return;
    if (where_.IsGivenUp()) throw std::runtime_error(kGivenUp);
    if (Clock::now() < probe) continue;
    try {
      ProbeAll(gloo_);
    } catch (const std::exception&) {
      if (Ended(kLeave)) return;
      throw;
    }
    pause = std::min<milliseconds>(2 * pause, kLastProbe);
    probe = Clock::now() + pause;
  }
}

bool CollectiveWork::Ended(std::chrono::milliseconds limit) {
  try {
    work_->wait(limit);
    return true;
  } catch (const std::exception&) {
    if (!work_->isCompleted()) return false;
  }
  work_->wait(limit);  // ended just now, or failed
  return true;
}

MessageWatch::~MessageWatch() {
  {
    const std::lock_guard lock(mutex_);
    stop_ = true;
  }
  stopping_.notify_all();
  if (thread_.joinable()) thread_.join();
}

void MessageWatch::Wait(c10d::Work& work, int peer, std::chrono::milliseconds deadline) {
  Watched watched{&work, peer, std::chrono::steady_clock::now() + kFirstProbe, kFirstProbe, {}};
  {
    const std::lock_guard lock(mutex_);
    if (!thread_.joinable()) thread_ = std::thread([this] { Run(); });
    watched_.push_back(&watched);
  }
  bool complete = false;
  std::exception_ptr failure;
  try {
    complete = work.wait(deadline);  // false when aborted
  } catch (...) {
    failure = std::current_exception();
  }
  const std::lock_guard lock(mutex_);
  std::erase(watched_, &watched);
  if (complete) return;
  if (watched.lost) std::rethrow_exception(watched.lost);
  if (failure) std::rethrow_exception(failure);
  throw std::runtime_error("the message was aborted");
}

void MessageWatch::Run() {
  std::unique_lock lock(mutex_);
  const auto pause =
      where_.given_up == nullptr ? std::chrono::milliseconds(std::chrono::seconds(1)) : kLook;
  while (!stopping_.wait_for(lock, pause, [this] { return stop_; })) {
    const auto now = std::chrono::steady_clock::now();
    for (Watched* watched : watched_) {
      if (!watched->lost && where_.IsGivenUp()) {
        watched->lost = std::make_exception_ptr(std::runtime_error(kGivenUp));
        watched->work->abort();
      }
      if (watched->lost || now < watched->next) continue;
      watched->pause = std::min(2 * watched->pause, kLastProbe);
      watched->next = now + watched->pause;
      try {
        Probe(gloo_, watched->peer);
      } catch (const std::exception&) {
        watched->lost = std::current_exception();
        watched->work->abort();
      }
    }
  }
}

void MessageWork::Wait() {
  try {
    watch_.Wait(*work_, peer_, where_.deadline);
  } catch (const std::exception& error) {
    where_.Rethrow(operation_, error);
  }
}

}  // namespace keel::parallel
