// SpanRecorder: when a rank did what: spans of its threads, kept until somebody writes them down.
// Torch-free.
//
// A span is of a lane, which is a thread's for as long as it lasts: those of one lane follow each
// other or stand in each other. Thread-safe; where nothing is recorded, a span costs a look at a
// pointer or a flag, otherwise two looks at the clock and a lock that is seldom contended.
#pragma once

#include <atomic>
#include <cstdint>
#include <mutex>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"

namespace keel {

// The numbers stand in files (docs/formats/trace.md).
enum class SpanLane : uint8_t {
  kTrain,
  kSaver,
  kGeneration,   // of a rank that generates and does not train
  kWeights,      // what sends or receives weights beside the rest
  kCopier,       // of a save: who copies and digests
  kFirstWriter,  // and who writes: this one and those behind it
};
inline constexpr int kMostSpanLanes = 256;

inline SpanLane WriterLane(size_t writer) {
  const size_t lane = static_cast<size_t>(SpanLane::kFirstWriter) + writer;
  return static_cast<SpanLane>(lane < kMostSpanLanes ? lane : kMostSpanLanes - 1);
}

// As people read it.
inline std::string LaneName(int lane) {
  switch (static_cast<SpanLane>(lane)) {
    case SpanLane::kTrain:
      return "training";
    case SpanLane::kSaver:
      return "saver";
    case SpanLane::kGeneration:
      return "generation";
    case SpanLane::kWeights:
      return "weights";
    case SpanLane::kCopier:
      return "saver: copies";
    default:
      return "saver: writer " + std::to_string(lane - static_cast<int>(SpanLane::kFirstWriter));
  }
}

struct Span {
  const char* name = "";  // of static storage; letters, spaces, commas
  SpanLane lane = SpanLane::kTrain;
  int64_t begin_ns = 0, end_ns = 0;  // by the monotonic clock
  int64_t step = 0;
  // Of a micro-batch, its number and the stage that computes it; -1: of none.
  int microbatch = -1, stage = -1;
};

class SpanRecorder {
 public:
  // More than `most` spans that nobody takes are counted and dropped.
  explicit SpanRecorder(size_t most = 100'000, const Clock& clock = SystemClock())
      : most_(most), clock_(&clock) {}

  // Spans that begin from now on are of `step`, and recorded or not.
  void SetStep(int64_t step, bool active) {
    step_.store(step, std::memory_order_relaxed);
    active_.store(active, std::memory_order_relaxed);
  }
  bool active() const { return active_.load(std::memory_order_relaxed); }
  int64_t step() const { return step_.load(std::memory_order_relaxed); }
  int64_t Now() const { return clock_->Monotonic().count(); }

  void Add(const Span& span) {
    const std::lock_guard lock(mutex_);
    if (spans_.size() < most_) {
      spans_.push_back(span);
    } else {
      ++dropped_;
    }
  }
  // What was added since the last time, in the order of the ends; and how many were dropped.
  std::pair<std::vector<Span>, int64_t> Take() {
    const std::lock_guard lock(mutex_);
    std::pair<std::vector<Span>, int64_t> taken(std::move(spans_), std::exchange(dropped_, 0));
    spans_.clear();
    return taken;
  }

 private:
  const size_t most_;
  const Clock* clock_;
  std::atomic<int64_t> step_{0};
  std::atomic<bool> active_{false};
  std::mutex mutex_;
  std::vector<Span> spans_;
  int64_t dropped_ = 0;
};

// What else is to be said of a span.
struct SpanDetails {
  SpanLane lane = SpanLane::kTrain;
  int microbatch = -1, stage = -1;
  int64_t step = -1;  // -1: the recorder's; of a save beside the training its own
};

// A span from here to the end of its scope. `recorder` may be null: there is nothing to record to.
class ScopedSpan {
 public:
  ScopedSpan(SpanRecorder* recorder, const char* name, const SpanDetails& details = {})
      : recorder_(recorder != nullptr && recorder->active() ? recorder : nullptr) {
    if (recorder_ == nullptr) return;
    span_ = {name,
             details.lane,
             recorder_->Now(),
             0,
             details.step >= 0 ? details.step : recorder_->step(),
             details.microbatch,
             details.stage};
  }
  ~ScopedSpan() { End(); }
  ScopedSpan(const ScopedSpan&) = delete;
  ScopedSpan& operator=(const ScopedSpan&) = delete;

  // Ends it before its scope does.
  void End() {
    if (recorder_ == nullptr) return;
    span_.end_ns = recorder_->Now();
    recorder_->Add(span_);
    recorder_ = nullptr;
  }

 private:
  SpanRecorder* recorder_;
  Span span_;
};

}  // namespace keel
