#include "trainer/metrics/run_summary.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <limits>

namespace keel::trainer {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

class SetClock final : public Clock {
 public:
  std::chrono::nanoseconds Monotonic() const override { return now; }
  std::chrono::system_clock::time_point Wall() const override { return {}; }
  void SleepFor(std::chrono::nanoseconds duration) const override { now += duration; }
  mutable std::chrono::nanoseconds now{0};
};

StepLine Lm(double loss, double data_s, double learning_s) {
  StepLine line;
  line.Set("loss_metrics/global_avg_loss", loss);
  line.Set("time_metrics/data_loading(s)", data_s);
  line.Set("time_metrics/forward_backward(s)", learning_s);
  return line;
}

StepLine Validated(double loss) {
  StepLine line;
  line.Set("validation_metrics/global_avg_loss", loss);
  line.Set("time_metrics/validation(s)", 1.0);
  return line;
}

RunPlaces Places() {
  RunPlaces places;
  places.total_steps = 4;
  places.folder = "runs/x";
  places.metrics = {"runs/x/metrics.jsonl"};
  places.saved_step = 4;
  places.has_model = true;
  return places;
}

TEST(RunSummaryTest, BestTimeSavesPlacesAndWhatToTypeNext) {
  SetClock clock;
  RunSummary summary(0, clock);
  for (int64_t step = 1; step <= 4; ++step) summary.AddStep(step, Lm(3.0, 1, 10));
  summary.AddValidation(2, Validated(2.5));
  summary.AddValidation(4, Validated(2.75));
  summary.AddSave(true, 3 << 20, 0.25);
  summary.AddSave(true, 3 << 20, 0.5);
  summary.AddSave(false, 0, 0);
  summary.AddSeconds("save", 4);
  clock.now = std::chrono::seconds(60);
  EXPECT_EQ(summary.Text(Places()),
            "summary: steps 1 to 4 of 4 in 0:01:00\n"
            "best        validation loss 2.5000 at step 2; the last, at step 4, 2.7500\n"
            "time        forward, backward 40.0 s (67 %) · data 4.0 s (7 %) · save 4.0 s (7 %) · "
            "validate 2.0 s (3 %) · other 10.0 s (17 %)\n"
            "saves       2 with 6.0 MiB; training lost 0.75 s to them; 1 failed\n"
            "folder      runs/x; the newest checkpoint is global_step_4\n"
            "metrics     runs/x/metrics.jsonl\n"
            "next        keel report runs/x      # makes runs/x/report.html\n"
            "            keel ckpt ls runs/x\n"
            "            keel ckpt export-hf runs/x/global_step_4 runs/x/exported");
}

TEST(RunSummaryTest, WithoutValidationTheLastValueOfTheSteps) {
  RunSummary summary(0);
  summary.AddStep(1, Lm(1.0, 1, 1));
  summary.AddStep(2, Lm(2.0, 1, 1));
  const std::string text = summary.Text(Places());
  EXPECT_THAT(text, HasSubstr("\nlast        loss 2.0000 at step 2\n"));
  EXPECT_THAT(text, Not(HasSubstr("best")));
}

TEST(RunSummaryTest, ARewardIsBestWhereItIsHighest) {
  RunSummary summary(0);
  for (const auto& [step, reward] : std::vector<std::pair<int64_t, double>>{
           {0, 0.25}, {2, 0.75}, {4, std::numeric_limits<double>::quiet_NaN()}, {6, 0.5}}) {
    StepLine line;
    line.Set("val-core/all/reward/mean", reward);
    summary.AddValidation(step, line);
  }
  EXPECT_THAT(summary.Text(Places()),
              HasSubstr("validation reward 0.7500 at step 2; the last, at step 6, 0.5000"));
}

TEST(RunSummaryTest, AResumedRunTellsOfThisStartAlone) {
  RunSummary summary(37);
  summary.AddStep(38, Lm(1.0, 1, 1));
  RunPlaces places = Places();
  places.stopped = true;
  places.total_steps = 120;
  const std::string text = summary.Text(places);
  EXPECT_THAT(text, HasSubstr("summary: step 38 of 120 in "));
  EXPECT_THAT(text, HasSubstr(", stopped; of this start alone, which went on from step 37\n"));
  EXPECT_THAT(RunSummary(120).Text(places), HasSubstr("summary: no step was left of 120; "));
}

TEST(RunSummaryTest, NothingIsOfferedThatIsNotThere) {
  RunPlaces places = Places();
  places.metrics.clear();
  places.saved_step.reset();
  EXPECT_EQ(RunSummary(4).Text(places),
            "summary: no step was left of 4; the run's metrics tell of those before\n"
            "folder      runs/x");
  places.saved_step = 4;
  places.has_model = false;
  EXPECT_THAT(RunSummary(4).Text(places), Not(HasSubstr("export-hf")));
}

TEST(RunSummaryTest, WordsAreAsAShellTakesThem) {
  RunPlaces places = Places();
  places.folder = "runs/it's mine";
  places.answers = true;
  EXPECT_THAT(RunSummary(0).Text(places),
              HasSubstr("keel chat 'runs/it'\\''s mine/global_step_4'"));
}

}  // namespace
}  // namespace keel::trainer
