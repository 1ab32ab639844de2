#include "common/tensors/transfer_check.h"

#include <gmock/gmock.h>

namespace keel {
namespace {

using ::testing::HasSubstr;

TEST(TransferProblems, OneMessageCountsAllAndNamesTheFirstOfEachKind) {
  TransferProblems problems(2);
  EXPECT_TRUE(problems.ToStatus().ok());
  for (const char* name : {"c", "a", "b", "a"}) problems.Add("missing tensors", name);
  problems.Add("others", "x\n");
  EXPECT_EQ(problems.ToStatus().code(), StatusCode::kInvalidData);
  EXPECT_EQ(problems.ToStatus().message(), "missing tensors (3): a, b, ...; others (1): x\\x0a");
}

TEST(CheckFilled, APartMayLackWhereThatIsSaidAndNoneMayComeTwice) {
  const Box whole = Box::Whole(Dims{4});
  const std::vector<Box> half = {{Dims{0}, Dims{2}}};
  EXPECT_TRUE(ValueOrThrow(CheckFilled(whole, std::vector<Box>{whole}, "t")));
  EXPECT_THAT(CheckFilled(whole, half, "t").status().message(), HasSubstr("t: 2 of 4 elements"));
  EXPECT_FALSE(ValueOrThrow(CheckFilled(whole, half, "t", true)));
  EXPECT_FALSE(ValueOrThrow(CheckFilled(whole, {}, "t", true)));
  for (const bool may_lack : {false, true}) {
    const std::vector<Box> twice = {half[0], half[0]};
    EXPECT_FALSE(CheckFilled(whole, twice, "t", may_lack).ok());
    const std::vector<Box> outside = {{Dims{3}, Dims{2}}};
    EXPECT_FALSE(CheckFilled(whole, outside, "t", may_lack).ok());
  }
}

}  // namespace
}  // namespace keel
