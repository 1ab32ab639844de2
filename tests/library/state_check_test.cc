#include "library/state_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

#include "common/wire.h"

namespace keel::library {
namespace {

using ::testing::HasSubstr;
using ::testing::Not;

StateDescription Saved() {
  StateDescription saved;
  saved.directory = "global_step_4";
  saved.tensors = {{"a", DType::kF32, {2}}, {"b", DType::kF64, {3, 1}}, {"opt.c", DType::kI64, {}}};
  return saved;
}

ShardTable Table(const std::vector<TensorInfo>& tensors) {
  ShardTable table;
  for (const TensorInfo& tensor : tensors)
    ThrowIfError(table.Add(tensor, Box::Whole(tensor.shape)));
  return table;
}

std::string Check(const ShardTable& table, std::vector<std::string> allowed, bool alone) {
  return CheckHolds(Saved(), table, allowed, alone).message();
}

TEST(StateCheckTest, TheSameStateFits) {
  const ShardTable same =
      Table({{"opt.c", DType::kI64, {}}, {"a", DType::kF32, {2}}, {"b", DType::kF64, {3, 1}}});
  EXPECT_EQ(Check(same, {}, true), "");
}

TEST(StateCheckTest, EachKindOfDifferenceIsNamedAndMayBeLet) {
  const ShardTable other =
      Table({{"a", DType::kBF16, {2}}, {"b", DType::kF64, {1, 3}}, {"new", DType::kF32, {1}}});
  const std::string said = Check(other, {}, true);
  EXPECT_THAT(said, HasSubstr("1 not in the checkpoint: new"));
  EXPECT_THAT(said, HasSubstr("1 in the checkpoint alone: opt.c"));
  EXPECT_THAT(said, HasSubstr("a (BF16[2] here, F32[2] there)"));
  EXPECT_THAT(said, HasSubstr("b (F64[1, 3] here, F64[3, 1] there)"));
  // What another rank may hold is not for this one to say.
  EXPECT_THAT(Check(other, {}, false), Not(HasSubstr("opt.c")));
  EXPECT_THAT(Check(other, {"opt.*", "[ab]"}, true), Not(HasSubstr("there")));
  EXPECT_EQ(Check(other, {"*"}, true), "");
}

TEST(StateCheckTest, ALongListIsCut) {
  std::vector<TensorInfo> many;
  for (int i = 0; i < 100; ++i) many.push_back({"x" + std::to_string(i), DType::kF32, {1}});
  EXPECT_THAT(Check(Table(many), {}, true), HasSubstr("100 not in the checkpoint: x0, "));
  EXPECT_THAT(Check(Table(many), {}, true), HasSubstr("x7 and 92 more;"));
}

std::string Names(const std::vector<std::string>& names) {
  return WireWriter().Texts(names).bytes();
}

TEST(StateCheckTest, OnlyWhatNoRankHasAPlaceForIsNamed) {
  const std::vector<std::string> differ = {Names({"lr", "epoch"}), Names({"epoch", "seen"})};
  EXPECT_THAT(CheckPlaced(Saved(), differ).message(),
              HasSubstr("1 in the checkpoint, and in no rank's state: epoch."));
  const std::vector<std::string> placed = {Names({"lr"}), Names({"seen"})};
  EXPECT_TRUE(CheckPlaced(Saved(), placed).ok());
}

TEST(StateCheckTest, AMalformedWordIsRefused) {
  const std::string good = Names({"lr"});
  for (const std::string& bad : {std::string(), good.substr(0, good.size() - 1), good + "x"})
    EXPECT_THAT(CheckPlaced(Saved(), std::vector{good, bad}).message(),
                HasSubstr("rank 1 sent a malformed word"));
}

}  // namespace
}  // namespace keel::library
