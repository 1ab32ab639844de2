#include "serve/request_queue.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

namespace keel::serve {

std::vector<Piece> Answer::Wait(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  grew_.wait_for(lock, patience, [&] { return !pieces_.empty(); });
  return std::exchange(pieces_, {});
}

void Answer::Put(Piece piece) {
  const std::lock_guard lock(mutex_);
  pieces_.push_back(std::move(piece));
  begun_ = true;
  grew_.notify_one();
}

void Answer::set_weights(const std::string& name) {
  const std::lock_guard lock(mutex_);
  weights_ = name;
}

std::string Answer::weights() const {
  const std::lock_guard lock(mutex_);
  return weights_;
}

bool Answer::begun() const {
  const std::lock_guard lock(mutex_);
  return begun_;
}

Result<std::shared_ptr<Answer>> RequestQueue::Submit(Work work) {
  const int64_t samples = work.samples();
  if (samples > most_) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{} samples in one request, of which this server holds {} at most",
                              samples, most_));
  }
  const std::lock_guard lock(mutex_);
  if (closed_) return Status(StatusCode::kUnavailable, "the server is about to end");
  if (open_ + samples > most_) {
    return Status(StatusCode::kBusy,
                  fmt::format("{} samples are running or waiting, of which this server holds {} at "
                              "most: try again later",
                              open_, most_));
  }
  open_ += samples;
  news_.submitted.push_back(std::make_shared<Answer>(std::move(work)));
  came_.notify_one();
  return news_.submitted.back();
}

void RequestQueue::Cancel(const std::shared_ptr<Answer>& answer) {
  const std::lock_guard lock(mutex_);
  const auto found = std::find(news_.submitted.begin(), news_.submitted.end(), answer);
  if (found != news_.submitted.end()) {
    open_ -= answer->work().samples();
    news_.submitted.erase(found);
    return;
  }
  news_.cancelled.push_back(answer);
  came_.notify_one();
}

void RequestQueue::Close() {
  const std::lock_guard lock(mutex_);
  closed_ = true;
}

RequestQueue::News RequestQueue::Take(std::chrono::milliseconds patience) {
  std::unique_lock lock(mutex_);
  came_.wait_for(lock, patience,
                 [&] { return !news_.submitted.empty() || !news_.cancelled.empty(); });
  return std::exchange(news_, {});
}

void RequestQueue::Ended(int64_t samples) {
  const std::lock_guard lock(mutex_);
  open_ -= samples;
}

int64_t RequestQueue::open_samples() const {
  const std::lock_guard lock(mutex_);
  return open_;
}

}  // namespace keel::serve
