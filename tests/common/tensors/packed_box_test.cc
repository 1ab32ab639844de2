// Boxes of strided memory in row-major order, by parts of every size.

#include "common/tensors/packed_box.h"

#include <gtest/gtest.h>

#include <cstring>
#include <vector>

namespace keel {
namespace {

TEST(PackedBox, PartsAreTheValuesInOrderAndNoLargerThanAsked) {
  // [3, 5, 7], of which neighbours along the first dim are neighbours in memory.
  const Box whole = Box::Whole({3, 5, 7});
  std::vector<uint32_t> memory(105);
  for (uint32_t i = 0; i < 105; ++i) memory[i] = i;
  const StridedView view = {reinterpret_cast<std::byte*>(memory.data()), {1, 21, 3}};
  const Box box = {{1, 0, 2}, {2, 4, 5}};
  std::vector<uint32_t> expected;
  for (uint32_t i = 1; i < 3; ++i)
    for (uint32_t j = 0; j < 4; ++j)
      for (uint32_t k = 2; k < 7; ++k) expected.push_back(i + 21 * j + 3 * k);
  for (const int64_t at_once : {1, 4, 12, 20, 44, 80, 100, 160, 1000}) {
    std::vector<uint32_t> seen;
    const Status status = ForEachPacked(
        box, whole, view, 4, at_once, [&](const Box& part, std::span<const std::byte> bytes) {
          EXPECT_EQ(part.elements() * 4, std::ssize(bytes));
          EXPECT_LE(std::ssize(bytes), std::max<int64_t>(4, at_once));
          seen.resize(seen.size() + bytes.size() / 4);
          std::memcpy(&seen[seen.size() - bytes.size() / 4], bytes.data(), bytes.size());
          return Status::Ok();
        });
    EXPECT_TRUE(status.ok());
    EXPECT_EQ(seen, expected) << at_once;
  }
}

TEST(PackedBox, EndsWithTheFirstError) {
  std::vector<uint32_t> memory(6);
  const StridedView view = {reinterpret_cast<std::byte*>(memory.data()), {1, 2}};
  const Box box = Box::Whole({2, 3});
  int calls = 0;
  const Status status = ForEachPacked(box, box, view, 4, 4, [&](const Box&, auto) {
    return ++calls == 2 ? Status(StatusCode::kIo, "full") : Status::Ok();
  });
  EXPECT_EQ(status.message(), "full");
  EXPECT_EQ(calls, 2);
}

}  // namespace
}  // namespace keel
