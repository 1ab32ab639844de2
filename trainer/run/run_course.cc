#include "trainer/run/run_course.h"

#include <algorithm>
#include <cmath>

namespace keel::trainer {

void RunCourse::Begin(SampleOrder order, std::optional<int64_t> total_steps) {
  order_.emplace(std::move(order));
  if (!total_steps) total_steps = trainer_.total_training_steps;
  if (total_steps) {
    total_steps_ = *total_steps;
    return;
  }
  const double samples = *trainer_.total_epochs * static_cast<double>(order_->size());
  total_samples_ = std::max<int64_t>(1, std::llround(samples));
  CountSteps();
}

void RunCourse::Restore(const RunState& state) {
  state_ = state;
  CountSteps();
}

void RunCourse::CountSteps() {
  if (!total_samples_) return;
  const int64_t batch = data_.train_batch_size;
  const int64_t left = std::max<int64_t>(0, *total_samples_ - state_.samples_consumed);
  total_steps_ = state_.step + (left + batch - 1) / batch;
}

int64_t RunCourse::BatchCount() const {
  const int64_t batch = data_.train_batch_size;
  return total_samples_ ? std::min(batch, *total_samples_ - state_.samples_consumed) : batch;
}

void RunCourse::Advance(int64_t step, int64_t samples, int64_t tokens) {
  state_.step = step;
  state_.samples_consumed += samples;
  state_.tokens_consumed += tokens;
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
