#include "rewards/reward_pool.h"

#include <fmt/format.h>

#include <algorithm>
#include <exception>
#include <system_error>
#include <utility>

#include "common/clock.h"
#include "common/guarded.h"
#include "rewards/reward_wire.h"

namespace keel::rewards {

namespace {

std::string TooLate(std::chrono::milliseconds deadline) {
  return fmt::format("no result within {:.3g} s", static_cast<double>(deadline.count()) / 1000);
}

}  // namespace

RewardPool::RewardPool(int workers, size_t batch_size, const Factory& make_verifier)
    : batch_size_(std::max<size_t>(1, batch_size)) {
  for (int i = 0; i < workers; ++i) verifiers_.push_back(make_verifier());
  threads_.reserve(verifiers_.size());
  try {
    for (const auto& verifier : verifiers_)
      threads_.emplace_back([this, &verifier] { Work(*verifier); });
  } catch (const std::system_error& error) {
    StopThreads();
    throw Error(StatusCode::kExhausted,
                fmt::format("no thread for verifier {} of {}: {}: lower reward.num_workers, or "
                            "raise the limits of memory (ulimit -v) and of processes (ulimit -u)",
                            threads_.size() + 1, workers, error.what()));
  }
}

RewardPool::~RewardPool() { StopThreads(); }

void RewardPool::StopThreads() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
    queue_.clear();
  }
  for (const auto& verifier : verifiers_) verifier->Cancel();
  work_.notify_all();
  for (std::thread& thread : threads_) thread.join();
}

Status RewardPool::Start() {
  // All at once, since a Python file may import for a minute; the first before them, so that what
  // is wrong with all is met once. Each on the thread that uses it later: programs end with the
  // thread that started them.
  std::unique_lock lock(mutex_);
  start_ = Status::Ok();
  const size_t first = std::min<size_t>(1, verifiers_.size());
  for (const auto& [begin, end] : {std::pair(size_t{0}, first), {first, verifiers_.size()}}) {
    for (size_t i = begin; i < end; ++i) to_start_.insert(verifiers_[i].get());
    work_.notify_all();
    done_.wait(lock, [this] { return to_start_.empty(); });
    if (!start_.ok()) break;
  }
  return start_;
}

void RewardPool::Submit(RewardSample sample, std::optional<std::chrono::milliseconds> limit) {
  {
    const std::lock_guard lock(mutex_);
    const int64_t ticket = next_ticket_++;
    tickets_[ticket] = {
        .caller_id = sample.id, .submitted = std::chrono::steady_clock::now(), .limit = limit};
    ++open_;
    sample.id = ticket;
    queue_.push_back(std::move(sample));
  }
  work_.notify_one();
}

std::vector<RewardResult> RewardPool::Collect(std::chrono::milliseconds deadline,
                                              const std::function<void()>& meanwhile) {
  const Stopwatch watch;
  const auto until = std::chrono::steady_clock::now() + deadline;
  std::unique_lock lock(mutex_);
  for (auto now = until - deadline; open_ > 0 && now < until;
       now = std::chrono::steady_clock::now()) {
    const auto next = std::min(until, now + std::chrono::seconds(1));
    if (done_.wait_until(lock, next, [this] { return open_ == 0; }) || !meanwhile) continue;
    lock.unlock();
    meanwhile();
    lock.lock();
  }
  std::vector<RewardResult> results;
  for (auto& [number, ticket] : tickets_) {
    if (!ticket.done) {
      ticket.result.error = TooLate(deadline);
      ++stats_.errors;
    }
    ticket.result.id = ticket.caller_id;
    results.push_back(std::move(ticket.result));
  }
  tickets_.clear();
  queue_.clear();  // those that came too late
  open_ = 0;
  stats_.waited_s += watch.Elapsed();
  ThrowIfError(changed_);
  return results;
}

std::vector<RewardResult> RewardPool::Poll() {
  const std::lock_guard lock(mutex_);
  ThrowIfError(changed_);
  const auto now = std::chrono::steady_clock::now();
  std::vector<RewardResult> results;
  for (auto entry = tickets_.begin(); entry != tickets_.end();) {
    auto& [number, ticket] = *entry;
    if (!ticket.done && (!ticket.limit || now - ticket.submitted <= *ticket.limit)) {
      ++entry;
      continue;
    }
    if (!ticket.done) {
      ticket.result.error = TooLate(*ticket.limit);
      ++stats_.errors;
      --open_;
      std::erase_if(queue_, [n = number](const RewardSample& sample) { return sample.id == n; });
    }
    ticket.result.id = ticket.caller_id;
    results.push_back(std::move(ticket.result));
    entry = tickets_.erase(entry);
  }
  return results;
}

RewardPoolStats RewardPool::stats() const {
  const std::lock_guard lock(mutex_);
  return stats_;
}

void RewardPool::Work(Verifier& verifier) {
  std::unique_lock lock(mutex_);
  while (true) {
    work_.wait(lock, [&] { return stopping_ || !queue_.empty() || to_start_.contains(&verifier); });
    if (stopping_) return;
    if (to_start_.contains(&verifier)) {
      lock.unlock();
      const Status started = Guarded([&] { return verifier.Start(); });
      lock.lock();
      if (start_.ok()) start_ = started;
      to_start_.erase(&verifier);
      done_.notify_all();
      continue;
    }
    std::vector<RewardSample> batch;
    // A fair share, so that one worker does not take what several could do.
    const size_t share = (queue_.size() + verifiers_.size() - 1) / verifiers_.size();
    const size_t count = std::clamp<size_t>(share, 1, batch_size_);
    for (size_t i = 0; i < count; ++i) {
      batch.push_back(std::move(queue_.front()));
      queue_.pop_front();
    }
    lock.unlock();
    const Stopwatch watch;
    std::vector<RewardResult> results;
    Status changed;
    try {
      results = verifier.Verify(batch);
    } catch (const VerifierChanged& error) {
      changed = error.status();
      results = AllFailed(batch, error.what());
    } catch (const std::exception& error) {
      results = AllFailed(batch, error.what());
    }
    const double seconds = watch.Elapsed();
    lock.lock();
    stats_.busy_s += seconds;
    if (changed_.ok()) changed_ = changed;
    for (RewardResult& result : results) {
      const auto ticket = tickets_.find(result.id);
      if (ticket == tickets_.end() || ticket->second.done) continue;  // of a round that is over
      ++(result.ok() ? stats_.verified : stats_.errors);
      ticket->second.done = true;
      ticket->second.result = std::move(result);
      --open_;
    }
    if (open_ == 0) done_.notify_all();
  }
}

}  // namespace keel::rewards
