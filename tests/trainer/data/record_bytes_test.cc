// What is put comes back in its order; what was not put is never taken.
#include "trainer/data/record_bytes.h"

#include <gtest/gtest.h>

namespace keel::trainer {
namespace {

const std::vector<int32_t> kIds = {7, -1, INT32_MAX};
constexpr std::string_view kText("a\0\xff", 3);

std::vector<std::byte> Bytes() {
  std::vector<std::byte> bytes;
  RecordWriter out(&bytes);
  out.Put(-5);
  out.PutIds(kIds);
  out.PutText(kText);
  out.PutIds({});
  return bytes;
}

// Whether all was there.
bool TakeAll(std::span<const std::byte> bytes) {
  RecordReader in(bytes);
  int64_t number = 0;
  std::vector<int32_t> ids, none = {1};
  std::string_view text;
  if (!in.Take(&number) || !in.TakeIds(&ids) || !in.TakeText(&text) || !in.TakeIds(&none))
    return false;
  EXPECT_EQ(number, -5);
  EXPECT_EQ(ids, kIds);
  EXPECT_EQ(text, kText);
  EXPECT_TRUE(none.empty());
  return in.done();
}

TEST(RecordBytesTest, WhatIsPutComesBack) {
  const std::vector<std::byte> bytes = Bytes();
  EXPECT_EQ(bytes.size(), 8u + 8 + 12 + 8 + 3 + 8);
  EXPECT_EQ(bytes[0], std::byte{0xfb});  // the lowest byte first
  EXPECT_TRUE(TakeAll(bytes));
}

TEST(RecordBytesTest, WhatIsCutOffOrLongerIsNoticed) {
  std::vector<std::byte> bytes = Bytes();
  for (size_t size = 0; size < bytes.size(); ++size)
    EXPECT_FALSE(TakeAll(std::span(bytes).first(size))) << size;
  bytes.push_back({});
  EXPECT_FALSE(TakeAll(bytes));
}

TEST(RecordBytesTest, NumbersOfElementsThatCannotBeAreRefused) {
  for (const int64_t count : {int64_t{-1}, int64_t{2}, INT64_MAX, INT64_MIN}) {
    std::vector<std::byte> bytes;
    RecordWriter(&bytes).Put(count);
    bytes.resize(bytes.size() + 4);  // one id
    std::vector<int32_t> ids;
    EXPECT_FALSE(RecordReader(bytes).TakeIds(&ids)) << count;
    std::string_view text;
    EXPECT_EQ(RecordReader(bytes).TakeText(&text), count == 2) << count;
  }
}

}  // namespace
}  // namespace keel::trainer
