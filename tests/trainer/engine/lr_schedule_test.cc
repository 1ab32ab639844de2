// The rate of every update against the schedules of others: tests/oracles/lr_reference.json, which
// tests/oracles/make_lr_reference.py writes.

#include "trainer/engine/lr_schedule.h"

#include <gtest/gtest.h>

#include <algorithm>
#include <cstdlib>
#include <fstream>
#include <iterator>
#include <map>
#include <set>
#include <string>
#include <vector>

#include "common/json.h"

namespace keel::trainer {
namespace {

// Every update's rate, as transformers' and Megatron's own schedules have it.
TEST(LrScheduleTest, EveryRateIsThatOfTransformersAndOfMegatron) {
  const char* root = std::getenv("KEEL_SOURCE_DIR");
  std::ifstream file(std::string(root == nullptr ? "." : root) +
                     "/tests/oracles/lr_reference.json");
  const std::string text(std::istreambuf_iterator<char>(file), {});
  const Json reference = ValueOrThrow(ParseJson(text, "lr_reference.json"));
  const std::map<std::string, LrDecayStyle> styles = {{"constant", LrDecayStyle::kConstant},
                                                      {"linear", LrDecayStyle::kLinear},
                                                      {"cosine", LrDecayStyle::kCosine},
                                                      {"wsd", LrDecayStyle::kWsd}};
  std::set<std::string> seen;
  for (const Json& one : reference) {
    LrScheduleOptions o;
    o.lr = one["lr"];
    o.min_lr = one["min_lr"];
    o.style = styles.at(one["style"]);
    o.warmup_steps = one["warmup"];
    o.decay_steps = one["decay"];
    o.wsd_decay_steps = one["wsd_decay"];
    const auto rates = one["rates"].get<std::vector<double>>();
    ASSERT_EQ(static_cast<int64_t>(rates.size()), one["updates"].get<int64_t>());
    for (size_t i = 0; i < rates.size(); ++i) {
      EXPECT_NEAR(LearningRate(o, static_cast<int64_t>(i) + 1), rates[i], 1e-15)
          << one["source"] << " " << one["style"] << ", update " << i + 1;
    }
    EXPECT_EQ(HighestLearningRate(o, one["updates"]),
              *std::max_element(rates.begin(), rates.end()));
    seen.insert(one["source"].get<std::string>() + " " + one["style"].get<std::string>());
  }
  EXPECT_EQ(seen.size(), 8u);
}

TEST(LrScheduleTest, ARunOfOneStepLearnsAndTheLastStepIsAboveTheFloor) {
  LrScheduleOptions o;
  o.lr = 1;
  o.min_lr = 0.1;
  for (const LrDecayStyle style : {LrDecayStyle::kConstant, LrDecayStyle::kLinear,
                                   LrDecayStyle::kCosine, LrDecayStyle::kWsd}) {
    o.style = style;
    o.warmup_steps = 0;
    o.decay_steps = 1;
    o.wsd_decay_steps = 1;
    EXPECT_EQ(LearningRate(o, 1), 1);
    o.decay_steps = 100;
    EXPECT_GT(LearningRate(o, 100), 0.1);
    // A warm-up that is longer than the run.
    o.warmup_steps = 10;
    EXPECT_EQ(HighestLearningRate(o, 1), 0);
    EXPECT_DOUBLE_EQ(HighestLearningRate(o, 6), 0.5);
    EXPECT_EQ(HighestLearningRate(o, 11), 1);
  }
}

}  // namespace
}  // namespace keel::trainer
