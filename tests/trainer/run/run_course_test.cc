#include "trainer/run/run_course.h"

#include <gtest/gtest.h>

#include <limits>
#include <utility>

namespace keel::trainer {
namespace {

class RunCourseTest : public ::testing::Test {
 protected:
  RunCourse Epochs(double epochs, int64_t batch) {
    trainer_.total_training_steps.reset();
    trainer_.total_epochs = epochs;
    data_.train_batch_size = batch;
    return RunCourse(trainer_, data_);
  }
  static SampleOrder Order(int64_t samples) { return SampleOrder(samples, 7, true); }

  TrainerSection trainer_;
  DataSection data_;
};

TEST_F(RunCourseTest, StepsAreThoseAskedForWhateverTheData) {
  trainer_.total_training_steps = 9;
  trainer_.total_epochs = 2;
  RunCourse course(trainer_, data_);
  course.Begin(Order(5), EpochUnit::kSamples);
  EXPECT_EQ(course.total_steps(), 9);
  EXPECT_EQ(course.BatchCount(), data_.train_batch_size);
}

TEST_F(RunCourseTest, WholeBatchesAreTheNearestNumberAndNeverNone) {
  for (const EpochUnit unit : {EpochUnit::kWholeBatches, EpochUnit::kConsumed}) {
    for (const auto& [epochs, steps] : {std::pair(1.0, 3), {1.5, 4}, {0.01, 1}}) {
      RunCourse course = Epochs(epochs, 4);
      course.Begin(Order(10), unit);  // 2.5, 3.75, 0.025 batches
      EXPECT_EQ(course.total_steps(), steps);
      EXPECT_EQ(course.BatchCount(), 4);
      course.Restore({});  // as every start does, with what there is
      EXPECT_EQ(course.total_steps(), steps);
    }
  }
}

TEST_F(RunCourseTest, WholeBatchesOfAnotherSizeAreOfTheSamplesThatAreLeft) {
  for (const EpochUnit unit : {EpochUnit::kWholeBatches, EpochUnit::kConsumed}) {
    RunCourse course = Epochs(1, 40);
    course.Begin(Order(200), unit);
    EXPECT_EQ(course.total_steps(), 5);
    RunState state;
    state.step = 4;
    state.samples_consumed = 80;  // by batches of 20, before
    course.Restore(state);
    EXPECT_EQ(course.total_steps(), 4 + 3);
    EXPECT_EQ(course.BatchCount(), 40);
  }
}

TEST_F(RunCourseTest, StepsThatTakeMoreThanABatchEndTheEpochsSooner) {
  RunCourse course = Epochs(2, 4);
  course.Begin(Order(10), EpochUnit::kConsumed);
  EXPECT_EQ(course.total_steps(), 5);
  course.Advance(1, 12, 1);  // three batches, of which one was learnt from
  EXPECT_EQ(course.total_steps(), 3);
  EXPECT_EQ(course.schedule_steps(), 5);
  // A run that goes on from there is the same.
  RunCourse again = Epochs(2, 4);
  again.Begin(Order(10), EpochUnit::kConsumed);
  again.Restore(course.state());
  EXPECT_EQ(again.total_steps(), 3);
  EXPECT_EQ(again.schedule_steps(), 5);
  course.Advance(2, 16, 1);
  EXPECT_EQ(course.total_steps(), 2);
}

TEST_F(RunCourseTest, EpochsTakeEverySampleOnceAndTheLastStepWhatIsLeft) {
  RunCourse course = Epochs(1.5, 4);
  course.Begin(Order(10), EpochUnit::kSamples);  // 15 samples: 4, 4, 4, 3
  EXPECT_EQ(course.total_steps(), 4);
  int64_t taken = 0;
  for (int64_t step = 1; step <= 4; ++step) {
    const int64_t count = course.BatchCount();
    EXPECT_EQ(count, step < 4 ? 4 : 3);
    course.Advance(step, count, 10 * count);
    taken += count;
  }
  EXPECT_EQ(taken, 15);
  EXPECT_EQ(course.state().samples_consumed, 15);
  EXPECT_EQ(course.state().tokens_consumed, 150);
}

TEST_F(RunCourseTest, EpochsBeyondAnyNumberOfStepsAreRefused) {
  for (const double epochs : {1e10, 1e18, 1e300, std::numeric_limits<double>::infinity()}) {
    RunCourse course = Epochs(epochs, 2);
    EXPECT_THROW(course.Begin(Order(5), EpochUnit::kSamples), Error) << epochs;
  }
  RunCourse course = Epochs(8e8, 2);
  course.Begin(Order(5), EpochUnit::kSamples);
  EXPECT_EQ(course.total_steps(), 2'000'000'000);
}

TEST_F(RunCourseTest, ALittleOfAnEpochIsOneSample) {
  RunCourse course = Epochs(0.01, 4);
  course.Begin(Order(10), EpochUnit::kSamples);
  EXPECT_EQ(course.total_steps(), 1);
  EXPECT_EQ(course.BatchCount(), 1);
}

TEST_F(RunCourseTest, ARunThatGoesOnWithAnotherBatchCountsWhatIsLeft) {
  RunCourse course = Epochs(2, 2);
  course.Begin(Order(10), EpochUnit::kSamples);
  RunState state;
  state.step = 3;
  state.samples_consumed = 12;  // by batches of 4, before
  course.Restore(state);
  EXPECT_EQ(course.total_steps(), 3 + 4);
  state.samples_consumed = 30;  // more than there are
  course.Restore(state);
  EXPECT_EQ(course.total_steps(), 3);
}

TEST_F(RunCourseTest, SkipsInARowEndWithAnUpdateThatWasApplied) {
  RunCourse course(trainer_, data_);
  course.CountUpdates({0, 1}, {});
  course.CountUpdates({0, 1}, {});
  EXPECT_EQ(course.state().consecutive_skips, 2);
  // Some of the actor's updates were applied: it is not stuck. The critic got nowhere: it is.
  course.CountUpdates({1, 1}, {0, 2});
  EXPECT_EQ(course.state().consecutive_skips, 5);
  course.CountUpdates({1, 1}, {1, 0});
  EXPECT_EQ(course.state().consecutive_skips, 0);
  EXPECT_EQ(course.state().skipped_steps, 6);
  EXPECT_EQ(course.state().optimizer_steps, 2);
  // A step without any update is none that was skipped, and none that ends a row.
  course.CountUpdates({0, 1}, {});
  course.CountUpdates({}, {});
  EXPECT_EQ(course.state().consecutive_skips, 1);
}

TEST_F(RunCourseTest, WhatASaveBlockedIsToldOnce) {
  RunCourse course(trainer_, data_);
  course.set_blocked_s(1.5);
  EXPECT_EQ(course.TakeBlockedSeconds(), 1.5);
  EXPECT_EQ(course.TakeBlockedSeconds(), 0);
}

TEST_F(RunCourseTest, TheRestIsForecastByPastSteps) {
  trainer_.total_training_steps = 3;
  RunCourse course(trainer_, data_);
  course.Begin(Order(10), EpochUnit::kSamples);
  course.BeginStep();
  EXPECT_GE(course.EndTiming(), 0);
  EXPECT_EQ(course.mean_step_s(), course.step_s());
  course.Advance(1, 8, 100);
  const StepProgress progress = course.Progress(true);
  EXPECT_EQ(progress.StepText(), "step 1/3");
  EXPECT_EQ(progress.SkippedText(), "SKIPPED: loss or norm not finite");
  EXPECT_EQ((StepProgress{12, 345, 3723.9, false}).StepText(), "step  12/345");
  EXPECT_EQ((StepProgress{12, 345, 3723.9, false}).EtaText(), "1:02:03");
  EXPECT_DOUBLE_EQ(progress.eta_s, 2 * course.mean_step_s());
}

}  // namespace
}  // namespace keel::trainer
