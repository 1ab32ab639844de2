// RunCourse: how far a run is, how far it goes, and in which order it takes its samples.
//
// A task reads it and says what its steps came to; the runner (task_runner.h) sets it up and keeps
// it in the checkpoints. The same on all ranks but for times and metrics. Used from the training
// thread. Torch-free.
#pragma once

#include <cstdint>
#include <optional>
#include <utility>

#include "common/clock.h"
#include "trainer/config/sections.h"
#include "trainer/data/sample_order.h"
#include "trainer/metrics/metrics_sink.h"
#include "trainer/run/run_state.h"

namespace keel::trainer {

struct RunStart;

class RunCourse {
 public:
  // Both must outlive this.
  RunCourse(const TrainerSection& trainer, const DataSection& data)
      : trainer_(trainer), data_(data) {}

  // 1. Before the first step.
  void Begin(SampleOrder order, EpochUnit unit);
  // The run goes on from a checkpoint's state. Of total_epochs, what is left may take another
  // number of steps than it would have taken then: train_batch_size may be another.
  void Restore(const RunState& state);
  // Rank 0's; null on others, and before the first step. Must outlive this.
  MetricsSink* metrics() { return metrics_; }
  void set_metrics(MetricsSink* metrics) { metrics_ = metrics; }
  // Likewise rank 0's.
  const RunStart* start() const { return start_; }
  void set_start(const RunStart* start) { start_ = start; }

  // 2. What a step needs to know.
  const RunState& state() const { return state_; }
  SampleOrder& order() { return *order_; }
  // Of kConsumed, falls with each step that takes more than a batch.
  int64_t total_steps() const { return total_steps_; }
  // That schedules of rates are laid out over: the same in a run that goes on as in one that was
  // never interrupted.
  int64_t schedule_steps() const { return schedule_steps_; }
  // How many samples the next step takes: train_batch_size, at the end of kSamples what is left.
  int64_t BatchCount() const;
  // For the console, after Advance.
  StepProgress Progress(bool skipped) const {
    return {state_.step, total_steps_,
            mean_step_s_ * static_cast<double>(total_steps_ - state_.step), skipped};
  }

  // 3. What a step was. It begins now.
  void BeginStep() { step_watch_ = Stopwatch(); }
  // It has happened.
  void Advance(int64_t step, int64_t samples, int64_t tokens);
  // What the updates of a step came to; skipped ones had a loss or a norm that is not finite.
  struct UpdateCounts {
    int64_t applied = 0, skipped = 0;
    bool stuck() const { return applied == 0 && skipped > 0; }
  };
  // A step in which the one or the other got nowhere is no step forward.
  void CountUpdates(UpdateCounts actor, UpdateCounts critic);
  // Seconds of the step up to here, by which the rest of the run is forecast.
  double EndTiming();
  double step_s() const { return step_s_; }
  double mean_step_s() const { return mean_step_s_; }
  // Seconds for which a save blocked, until the next step tells of them, once.
  void set_blocked_s(double seconds) { blocked_s_ = seconds; }
  double TakeBlockedSeconds() { return std::exchange(blocked_s_, 0.0); }

 private:
  void CountSteps();

  const TrainerSection& trainer_;
  const DataSection& data_;
  RunState state_;
  std::optional<SampleOrder> order_;
  EpochUnit unit_ = EpochUnit::kSamples;
  std::optional<int64_t> total_samples_;  // of total_epochs
  int64_t total_steps_ = 0;
  int64_t schedule_steps_ = 0;
  MetricsSink* metrics_ = nullptr;
  const RunStart* start_ = nullptr;
  Stopwatch step_watch_;
  double step_s_ = 0;
  double mean_step_s_ = 0;
  double blocked_s_ = 0;
};

}  // namespace keel::trainer
