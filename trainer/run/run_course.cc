#include "trainer/run/run_course.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <limits>

namespace keel::trainer {

namespace {

// Begun ones, or the nearest number.
int64_t Batches(double samples, int64_t batch, EpochUnit unit) {
  const double batches = samples / static_cast<double>(batch);
  return unit == EpochUnit::kSamples ? static_cast<int64_t>(std::ceil(batches))
                                     : std::llround(batches);
}

}  // namespace

void RunCourse::Begin(SampleOrder order, EpochUnit unit) {
  order_.emplace(std::move(order));
  unit_ = unit;
  if (trainer_.total_training_steps) {
    total_steps_ = schedule_steps_ = *trainer_.total_training_steps;
    return;
  }
  const double samples = *trainer_.total_epochs * static_cast<double>(order_->size());
  // As many steps as total_training_steps may say; far more samples are no number of them.
  constexpr double kMostSteps = std::numeric_limits<int32_t>::max();
  if (samples / static_cast<double>(data_.train_batch_size) > kMostSteps) {
    throw Error(
        StatusCode::kConfig,
        fmt::format("trainer.total_epochs: {} epochs of {} samples are more than {:.0f} "
                    "steps of data.train_batch_size {}",
                    *trainer_.total_epochs, order_->size(), kMostSteps, data_.train_batch_size));
  }
  total_samples_ = std::max<int64_t>(1, std::llround(samples));
  CountSteps();
  schedule_steps_ = total_steps_;
}

void RunCourse::Restore(const RunState& state) {
  state_ = state;
  CountSteps();
  if (unit_ != EpochUnit::kConsumed) schedule_steps_ = total_steps_;
}

void RunCourse::CountSteps() {
  if (!total_samples_) return;
  const int64_t left = std::max<int64_t>(0, *total_samples_ - state_.samples_consumed);
  total_steps_ = state_.step + Batches(static_cast<double>(left), data_.train_batch_size, unit_);
  total_steps_ = std::max<int64_t>(1, total_steps_);  // also of samples for less than half a batch
}

int64_t RunCourse::BatchCount() const {
  const int64_t batch = data_.train_batch_size;
  if (!total_samples_ || unit_ != EpochUnit::kSamples) return batch;
  return std::min(batch, *total_samples_ - state_.samples_consumed);
}

void RunCourse::Advance(int64_t step, int64_t samples, int64_t tokens) {
  state_.step = step;
  state_.samples_consumed += samples;
  state_.tokens_consumed += tokens;
  if (unit_ == EpochUnit::kConsumed) CountSteps();
}

void RunCourse::CountUpdates(UpdateCounts actor, UpdateCounts critic) {
  state_.optimizer_steps += actor.applied;
  state_.skipped_steps += actor.skipped + critic.skipped;
  if (actor.stuck() || critic.stuck()) {
    state_.consecutive_skips += actor.skipped + critic.skipped;
  } else if (actor.applied + critic.applied > 0) {
    state_.consecutive_skips = 0;
  }
}

double RunCourse::EndTiming() {
  step_s_ = step_watch_.Elapsed();
  mean_step_s_ = mean_step_s_ == 0 ? step_s_ : 0.9 * mean_step_s_ + 0.1 * step_s_;
  return step_s_;
}

}  // namespace keel::trainer
