#include "trainer/rl/console_text.h"

#include <gtest/gtest.h>

#include "trainer/metrics/console_line.h"

namespace keel::trainer::rl {
namespace {

TEST(ConsoleTextTest, Dpo) {
  StepLine line;
  line.Set("train/loss", 0.6931);
  line.Set("train/grad_norm", 4.0);
  line.Set("rewards/margins", -0.0701);
  line.Set("rewards/accuracies", 0.5);
  line.Set("train/lr", 5e-6);
  line.Set("throughput(tps)", 2048.0);
  line.Set("timing_s/step", 0.5);
  const ConsoleLine shown = DpoText(line, {4, 12, 5, false});
  EXPECT_EQ(
      WholeText(shown),
      "step  4/12  loss   0.6931  norm    4.000  margin -0.0701  accuracy 0.500  lr 5.00e-06  "
      "tok/s     2,048  step 0.50 s  eta 0:00:05");
  EXPECT_EQ(FittedText(shown, 90),
            "step  4/12  loss   0.6931  accuracy 0.500  lr 5.00e-06  tok/s     2,048  step 0.50 s");
}

TEST(ConsoleTextTest, RlWithoutAnUpdateAndWithSamplesThatHaveNoScore) {
  StepLine line;
  line.Set("reward/errors", 3);
  line.Set("reward/samples", 64);
  line.Set("timing_s/gen", 1.5);
  line.Set("timing_s/old_log_prob", 0.5);
  line.Set("timing_s/update_actor", 0.25);
  line.Set("timing_s/sync", 0.0125);
  line.Set("timing_s/step", 2.5);
  line.Set("critic/score/mean", 0.125);
  line.Set("response_length/mean", 17.25);
  line.Set("actor/lr", 1e-6);
  line.Set("perf/throughput", 512.0);
  const ConsoleLine shown = RlText(line, {2, 10, 20, false});
  EXPECT_EQ(
      WholeText(shown),
      "step  2/10  reward  0.125  pg_loss   0.0000  kl 0.0e+00  entropy  0.000  length   17.2  "
      "lr 1.00e-06  tok/s       512  gen 1.50 s  train 0.75 s  sync 0.013 s  step 2.50 s  "
      "eta 0:00:20  errors 3/64");
  EXPECT_EQ(FittedText(shown, 99),
            "step  2/10  reward  0.125  lr 1.00e-06  tok/s       512  step 2.50 s  eta 0:00:20  "
            "errors 3/64");
}

}  // namespace
}  // namespace keel::trainer::rl
