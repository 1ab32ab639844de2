#include "trainer/config/best_measure.h"

#include <gtest/gtest.h>

namespace keel::trainer {
namespace {

std::string With(const std::string& metric, const std::string& dpo = "") {
  return "trainer:\n  task: dpo\n  keep_best_metric: " + metric + "\n" +
         (dpo.empty() ? "" : "dpo:\n  " + dpo + "\n");
}

TEST(BestMeasure, ALossByOtherSettingsOfDpoIsAnotherOne) {
  const std::string plain = With("val/loss");
  EXPECT_TRUE(ValueOrThrow(MeasureAlike(plain, plain)));
  EXPECT_FALSE(ValueOrThrow(MeasureAlike(plain, With("val/perplexity"))));
  EXPECT_FALSE(ValueOrThrow(MeasureAlike(plain, With("val/loss", "loss_type: [ipo]"))));
  EXPECT_FALSE(ValueOrThrow(MeasureAlike(With("val/loss", "beta: 0.5"), plain)));
  // No loss is not changed by one.
  EXPECT_TRUE(ValueOrThrow(MeasureAlike(With("val/reward", "beta: 0.5"), With("val/reward"))));
}

}  // namespace
}  // namespace keel::trainer
