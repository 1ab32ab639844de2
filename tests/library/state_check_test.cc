#include "library/state_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <string>
#include <vector>

namespace keel::library {
namespace {

using ::testing::ElementsAre;
using ::testing::HasSubstr;
using ::testing::IsEmpty;
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

std::string Word(const ShardTable& table, std::vector<std::string> allowed,
                 const std::vector<std::string>& values = {}) {
  return EncodeUnplaced(Unplaced(Saved(), table, allowed), Saved().tensors.size(), values);
}

// By one rank, which has all of the state.
std::string Check(const ShardTable& table, std::vector<std::string> allowed) {
  const std::string word = Word(table, allowed);
  const auto unplaced = ValueOrThrow(UnplacedByAll(Saved(), {&word, 1}));
  return CheckHolds(Saved(), table, allowed, unplaced).message();
}

TEST(StateCheckTest, TheSameStateFits) {
  const ShardTable same =
      Table({{"opt.c", DType::kI64, {}}, {"a", DType::kF32, {2}}, {"b", DType::kF64, {3, 1}}});
  EXPECT_EQ(Check(same, {}), "");
}

TEST(StateCheckTest, EachKindOfDifferenceIsNamedAndMayBeLet) {
  const ShardTable other =
      Table({{"a", DType::kBF16, {2}}, {"b", DType::kF64, {1, 3}}, {"new", DType::kF32, {1}}});
  const std::string said = Check(other, {});
  EXPECT_THAT(said, HasSubstr("1 not in the checkpoint: new"));
  EXPECT_THAT(said, HasSubstr("1 in the checkpoint alone: opt.c"));
  EXPECT_THAT(said, HasSubstr("a (BF16[2] here, F32[2] there)"));
  EXPECT_THAT(said, HasSubstr("b (F64[1, 3] here, F64[3, 1] there)"));
  EXPECT_THAT(Check(other, {"opt.*", "[ab]"}), Not(HasSubstr("there")));
  EXPECT_EQ(Check(other, {"*"}), "");
}

TEST(StateCheckTest, ALongListIsCut) {
  std::vector<TensorInfo> many;
  for (int i = 0; i < 100; ++i) many.push_back({"x" + std::to_string(i), DType::kF32, {1}});
  EXPECT_THAT(Check(Table(many), {}), HasSubstr("100 not in the checkpoint: x0, "));
  EXPECT_THAT(Check(Table(many), {}), HasSubstr("x7 and 92 more;"));
}

TEST(StateCheckTest, OnlyWhatNoRankHasAPlaceForIsUnplaced) {
  const ShardTable a = Table({{"a", DType::kF32, {2}}}), b = Table({{"b", DType::kF64, {3, 1}}});
  const auto unplaced = [](const std::vector<std::string>& words) {
    return ValueOrThrow(UnplacedByAll(Saved(), words));
  };
  EXPECT_THAT(unplaced({Word(a, {}, {"lr", "epoch"}), Word(b, {}, {"epoch", "seen"})}),
              ElementsAre("opt.c", "epoch"));
  EXPECT_THAT(unplaced({Word(a, {}), Word(b, {"opt.*"}, {"epoch"})}), IsEmpty());
}

TEST(StateCheckTest, AMalformedWordIsRefused) {
  const std::string good = Word(Table({}), {}, {"lr"});
  for (const std::string& bad : {std::string(), good.substr(0, good.size() - 1), good + "x",
                                 EncodeUnplaced({}, 30, {})})
    EXPECT_THAT(UnplacedByAll(Saved(), std::vector{good, bad}).status().message(),
                HasSubstr("rank 1 sent a malformed word"));
}

}  // namespace
}  // namespace keel::library
