#include "checkpoint/base/copy_check.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <numeric>
#include <set>
#include <string>
#include <vector>

namespace keel::checkpoint {
namespace {

using testing::HasSubstr;

constexpr int64_t kRows = 200, kColumns = 300;

class CopyCheckTest : public testing::Test {
 protected:
  CopyCheckTest() : values_(kRows * kColumns) { std::iota(values_.begin(), values_.end(), 1.F); }

  // One rank's rows [first, first + count) of a matrix, which lie in `values`.
  static ShardTable TableOf(const std::vector<float>& values, int64_t first = 0,
                            int64_t count = kRows, const Dims& strides = {}) {
    ShardTable table;
    ThrowIfError(table.Add({"matrix", DType::kF32, {kRows, kColumns}},
                           Box{{first, 0}, {count, kColumns}},
                           {reinterpret_cast<std::byte*>(const_cast<float*>(values.data())),
                            strides.empty() ? ContiguousStrides({count, kColumns}) : strides},
                           0));
    return table;
  }
  // What such ranks tell of the parts that several of them have.
  static std::vector<std::vector<CopyDigest>> Digests(const std::vector<ShardTable>& ranks) {
    std::vector<std::string> words;
    for (const ShardTable& one : ranks) words.push_back(NameParts(one));
    const std::set<PartKey> shared =
        ValueOrThrow(DecodeParts(EncodeParts(ValueOrThrow(SharedParts(words)))));
    std::vector<std::vector<CopyDigest>> all;
    for (const ShardTable& one : ranks) {
      std::vector<CopyDigest>& copies = all.emplace_back();
      for (const Shard& shard : one.shards()) {
        const TensorInfo& tensor = one.tensor_of(shard);
        const PartKey part = KeyOf(tensor, shard.box);
        if (shared.contains(part)) copies.push_back({tensor.name, part, DigestOf(tensor, shard)});
      }
    }
    return all;
  }
  static Status Compare(const std::vector<ShardTable>& ranks) {
    return CompareCopies(Digests(ranks), "Name them apart");
  }

  std::vector<float> values_;
};

TEST_F(CopyCheckTest, CopiesPass) {
  const std::vector<float> copy = values_;
  EXPECT_TRUE(Compare({TableOf(values_), TableOf(copy)}).ok());
  EXPECT_TRUE(CompareCopies({}, "").ok());
}

TEST_F(CopyCheckTest, CopiesPassHoweverTheyLieInMemory) {
  std::vector<float> transposed(values_.size()), gaps(kRows * (kColumns + 5));
  for (int64_t row = 0; row < kRows; ++row) {
    for (int64_t column = 0; column < kColumns; ++column) {
      const float value = values_[static_cast<size_t>(row * kColumns + column)];
      transposed[static_cast<size_t>(column * kRows + row)] = value;
      gaps[static_cast<size_t>(row * (kColumns + 5) + column)] = value;
    }
  }
  const std::vector<ShardTable> ranks = {TableOf(values_),
                                         TableOf(transposed, 0, kRows, {1, kRows}),
                                         TableOf(gaps, 0, kRows, {kColumns + 5, 1})};
  EXPECT_TRUE(Compare(ranks).ok()) << Compare(ranks).ToString();
  transposed[12345] += 1;
  EXPECT_THAT(Compare(ranks).message(), HasSubstr("'matrix' of ranks 0 and 1"));
}

TEST_F(CopyCheckTest, PartsOfAWholeAreNoCopies) {
  const std::vector<float> other(values_.size(), 7);
  const std::vector<ShardTable> ranks = {TableOf(values_, 0, 100), TableOf(other, 100, 100)};
  EXPECT_TRUE(Compare(ranks).ok());
  for (const std::vector<CopyDigest>& copies : Digests(ranks)) EXPECT_TRUE(copies.empty());
}

TEST_F(CopyCheckTest, AnyOtherValueIsFound) {
  for (const size_t at : {size_t{0}, size_t{5000}, values_.size() / 2, values_.size() - 1}) {
    std::vector<float> other = values_;
    other[at] += 1;
    const Status status = Compare({TableOf(values_), TableOf(values_), TableOf(other)});
    EXPECT_EQ(status.code(), StatusCode::kInvalidData) << at;
    EXPECT_THAT(status.message(), HasSubstr("'matrix' of ranks 0 and 2"));
  }
}

TEST_F(CopyCheckTest, ATornWordIsNone) {
  const std::string word = NameParts(TableOf(values_));
  for (const std::string& torn : {word.substr(0, word.size() - 1), word + "x", std::string("x")})
    EXPECT_EQ(SharedParts(std::vector{torn}).status().code(), StatusCode::kInternal);
}

}  // namespace
}  // namespace keel::checkpoint
