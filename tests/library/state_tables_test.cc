#include "library/state_tables.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <array>
#include <string>
#include <vector>

namespace keel::library {
namespace {

using ::testing::HasSubstr;

std::array<float, 64> memory{};

StateTensor Tensor(std::string name, Dims shape) {
  StateTensor tensor;
  tensor.name = std::move(name);
  tensor.shape = shape;
  tensor.data = memory.data();
  return tensor;
}

std::string Refusal(const std::vector<StateTensor>& state, bool to_be_written = false) {
  const Result<ShardTable> table = TableOf(state, 0, to_be_written);
  EXPECT_EQ(table.status().code(), StatusCode::kInvalidData);
  return table.status().message();
}

TEST(StateTablesTest, TakesWholeTensorsBoxesAndScalars) {
  StateTensor part = Tensor("part", {8, 4});
  part.box = Box{{2, 0}, {3, 4}};
  const std::vector<StateTensor> state = {Tensor("whole", {4, 2}), part, Tensor("one", {}),
                                          Tensor("none", {0, 3})};
  const Result<ShardTable> table = TableOf(state, 3, true);
  ASSERT_TRUE(table.ok()) << table.status().message();
  ASSERT_EQ(table->shards().size(), 3u);  // what has no elements is left out
  EXPECT_EQ(table->shards()[1].box.ToString(), "[2:5, 0:4]");
  EXPECT_EQ(table->shards()[1].replica, 3);
  EXPECT_EQ(table->shards()[0].view.strides, (Dims{2, 1}));
  EXPECT_EQ(table->bytes(), (8 + 12 + 1) * 4);
}

TEST(StateTablesTest, NamesWhatIsWrong) {
  EXPECT_THAT(Refusal({Tensor("", {2})}), HasSubstr("has no name"));
  EXPECT_THAT(Refusal({Tensor("__metadata__", {2})}), HasSubstr("keeps for itself"));
  EXPECT_THAT(Refusal({Tensor("\xff", {2})}), HasSubstr("not UTF-8"));
  EXPECT_THAT(Refusal({Tensor(std::string(2000, 'x'), {2})}), HasSubstr("2000 bytes"));
  EXPECT_THAT(Refusal({Tensor("a", {2}), Tensor("a", {2})}), HasSubstr("'a' stands in the state"));
  EXPECT_THAT(Refusal({Tensor("a", {-1})}), HasSubstr("shape [-1]"));
  StateTensor bad = Tensor("a", {2, 2});
  bad.data = nullptr;
  EXPECT_THAT(Refusal({bad}), HasSubstr("'a' has no memory"));
  bad = Tensor("a", {2, 2});
  bad.strides = {1};
  EXPECT_THAT(Refusal({bad}), HasSubstr("2 dims and 1 strides"));
  bad.strides = {-2, 1};
  EXPECT_THAT(Refusal({bad}), HasSubstr("strides [-2, 1]"));
  bad = Tensor("a", {2, 2});
  bad.box = Box{{1, 0}, {2, 2}};
  EXPECT_THAT(Refusal({bad}), HasSubstr("lies outside"));
}

TEST(StateTablesTest, ElementsUponEachOtherAreReadAndNotWritten) {
  StateTensor spread = Tensor("a", {4, 3});
  for (const Dims& strides : {Dims{0, 1}, Dims{1, 1}, Dims{2, 1}}) {
    spread.strides = strides;
    EXPECT_TRUE(TableOf(std::vector{spread}, 0, false).ok());
    EXPECT_THAT(Refusal({spread}, true), HasSubstr("lie upon each other"));
  }
  for (const Dims& strides : {Dims{3, 1}, Dims{1, 4}, Dims{1, 8}, Dims{5, 1}}) {
    spread.strides = strides;
    EXPECT_TRUE(TableOf(std::vector{spread}, 0, true).ok()) << strides.ToString();
  }
}

}  // namespace
}  // namespace keel::library
