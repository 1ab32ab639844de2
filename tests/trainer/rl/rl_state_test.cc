// What a checkpoint says of an RL run beside weights and position.
#include "trainer/rl/rl_state.h"

#include <gmock/gmock.h>

#include "trainer/run/run_state.h"

namespace keel::trainer::rl {
namespace {

using ::testing::AllOf;
using ::testing::HasSubstr;

RlState State() {
  RlState state;
  state.version = {12, 0x0123456789abcdef};
  state.critic_optimizer_steps = 24;
  state.kl_controller = {{"type", "adaptive"}, {"kl_coef", 0.1}};
  state.entropy_controller = {{"entropy_coeff", 0.2}, {"last_entropy", nullptr}};
  return state;
}

TEST(RlStateDocument, ComesBackAsItWas) {
  EXPECT_EQ(RlStateJson(ValueOrThrow(ParseRlState(RlStateJson(State())))), RlStateJson(State()));
}

TEST(RlStateDocument, ARunWhoseEntropyIsNotSteeredSaysNothingOfIt) {
  RlState plain = State();
  plain.entropy_controller = nullptr;
  EXPECT_FALSE(Json::parse(RlStateJson(plain)).contains("entropy_controller"));
  EXPECT_TRUE(ValueOrThrow(ParseRlState(RlStateJson(plain))).entropy_controller.is_null());
}

// In formats 1 and 3 the digest of all weights was another function of theirs, and in format 2 it
// was wrong where several ranks wrote one box.
TEST(RlStateDocument, AnEarlierFormatHasNoDigestToCompare) {
  for (const int format : {1, 2, 3}) {
    Json earlier = Json::parse(RlStateJson(State()));
    earlier["format_version"] = format;
    const RlState state = ValueOrThrow(ParseRlState(earlier.dump()));
    EXPECT_EQ(state.version.digest, 0u);
    EXPECT_EQ(state.version.number, State().version.number);
  }
  EXPECT_EQ(ValueOrThrow(ParseRlState(RlStateJson(State()))).version.digest,
            State().version.digest);
}

TEST(RlStateDocument, NumbersThatNoRunComesToAreRefusedByName) {
  const Json good = Json::parse(RlStateJson(State()));
  for (const char* key : {"format_version", "weight_version", "critic_optimizer_steps"}) {
    for (const Json& wrong :
         {Json(-1), Json(int64_t{1} << 62), Json(kMostCounted + 1), Json(0.5)}) {
      Json changed = good;
      changed[key] = wrong;
      const Status status = ParseRlState(changed.dump()).status();
      EXPECT_EQ(status.code(), StatusCode::kInvalidData) << key << ": " << wrong;
      EXPECT_THAT(status.message(), AllOf(HasSubstr("rl_state.json"), HasSubstr(key)));
    }
  }
  for (const char* digest : {"", "0x23456789abcdef", "0123456789abcdef0"}) {
    Json changed = good;
    changed["weight_digest"] = digest;
    EXPECT_THAT(ParseRlState(changed.dump()).status().message(), HasSubstr("weight_digest"));
  }
}

}  // namespace
}  // namespace keel::trainer::rl
