#include "library/state_copies.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <string>
#include <vector>

namespace keel::library {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 200, kColumns = 300;

class StateCopiesTest : public testing::Test {
 protected:
  StateCopiesTest() : values_(kRows * kColumns) { std::iota(values_.begin(), values_.end(), 1.F); }

  // One rank's word of its rows [first, first + count) of a matrix, which lie in `values`.
  static std::string WordOf(const std::vector<float>& values, int64_t first = 0,
                            int64_t count = kRows) {
    ShardTable table;
    ThrowIfError(table.Add({"matrix", DType::kF32, {kRows, kColumns}},
                           Box{{first, 0}, {count, kColumns}},
                           {reinterpret_cast<std::byte*>(const_cast<float*>(values.data())),
                            ContiguousStrides({count, kColumns})},
                           0));
    return SampleCopies(table);
  }

  std::vector<float> values_;
};

TEST_F(StateCopiesTest, CopiesPass) {
  const std::vector<float> copy = values_;
  EXPECT_TRUE(CompareCopies(std::vector{WordOf(values_), WordOf(copy)}).ok());
  EXPECT_TRUE(CompareCopies(std::vector<std::string>{}).ok());
}

TEST_F(StateCopiesTest, PartsOfAWholeAreNoCopies) {
  const std::vector<float> other(values_.size(), 7);
  EXPECT_TRUE(CompareCopies(std::vector{WordOf(values_, 0, 100), WordOf(other, 100, 100)}).ok());
}

TEST_F(StateCopiesTest, OtherValuesAreFoundAtTheBeginningInTheMiddleAndAtTheEnd) {
  for (const size_t at : {size_t{0}, values_.size() / 2, values_.size() - 1}) {
    std::vector<float> other = values_;
    other[at] += 1;
    const Status status =
        CompareCopies(std::vector{WordOf(values_), WordOf(values_), WordOf(other)});
    EXPECT_EQ(status.code(), StatusCode::kInvalidData) << at;
    EXPECT_THAT(status.message(), HasSubstr("'matrix' of ranks 0 and 2"));
  }
}

TEST_F(StateCopiesTest, ATornWordIsNone) {
  const std::string word = WordOf(values_);
  for (const std::string& torn : {word.substr(0, word.size() - 1), word + "x", std::string("x")})
    EXPECT_EQ(CompareCopies(std::vector{word, torn}).code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace keel::library
