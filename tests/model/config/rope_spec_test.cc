#include "model/config/rope_spec.h"

#include <gmock/gmock.h>

namespace keel::model {
namespace {

using ::testing::ElementsAre;
using ::testing::FloatNear;

// The numbers of a whole model are held against transformers (transformers_oracle_test.cc).
TEST(RopeSpec, FrequenciesFollowTheirType) {
  RopeSpec spec;
  spec.theta = 16;
  const auto near = [](float x) { return FloatNear(x, 1e-6f); };
  EXPECT_THAT(RopeFrequencies(spec, 8, 1), ElementsAre(1, near(0.5f), near(0.25f), near(0.125f)));
  spec.type = RopeType::kLinear;
  spec.factor = 2;
  EXPECT_THAT(RopeFrequencies(spec, 8, 1),
              ElementsAre(near(0.5f), near(0.25f), near(0.125f), near(0.0625f)));
  spec.type = RopeType::kDynamic;
  spec.original_positions = 10;
  EXPECT_THAT(RopeFrequencies(spec, 4, 10), ElementsAre(1, near(0.25f)));
  // (2 * 3 - 1)^(4 / 2) times the base.
  EXPECT_THAT(RopeFrequencies(spec, 4, 30), ElementsAre(1, near(0.05f)));
  spec.type = RopeType::kLongrope;
  spec.short_factors = {1, 2};
  spec.long_factors = {4, 5};
  EXPECT_THAT(RopeFrequencies(spec, 4, 10), ElementsAre(1, near(0.125f)));
  EXPECT_THAT(RopeFrequencies(spec, 4, 11), ElementsAre(near(0.25f), near(0.05f)));
}

TEST(RopeSpec, APartOfAHeadMayTurn) {
  RopeSpec spec;
  spec.rotated = 0.5;
  EXPECT_EQ(spec.RotatedDims(16), 8);
  EXPECT_EQ(RopeFrequencies(spec, 16, 1).size(), 4u);
}

}  // namespace
}  // namespace keel::model
