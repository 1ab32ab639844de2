#include "common/memory/stream_copy.h"

#include <gtest/gtest.h>

#include <cstring>
#include <random>
#include <vector>

namespace keel {
namespace {

TEST(StreamCopy, CopiesAllSizesAtAllAlignmentsAndNothingBeside) {
  constexpr size_t kRoom = 8192;
  std::mt19937_64 random(1);
  std::vector<std::byte> source(kRoom);
  for (std::byte& b : source) b = static_cast<std::byte>(random());
  for (int round = 0; round < 20'000; ++round) {
    const size_t from = random() % 300;
    const size_t to = random() % 300;
    const size_t size =
        round % 2 == 0 ? random() % 1100 : random() % (kRoom - std::max(from, to) + 1);
    std::vector<std::byte> target(kRoom, std::byte{0x5a});
    std::vector<std::byte> expected = target;
    std::memcpy(expected.data() + to, source.data() + from, size);
    {
      StreamCopy copy;
      // In one piece, or in two.
      const size_t cut = round % 3 == 0 ? size / 3 : 0;
      copy(target.data() + to, source.data() + from, static_cast<int64_t>(cut));
      copy(target.data() + to + cut, source.data() + from + cut, static_cast<int64_t>(size - cut));
    }
    ASSERT_EQ(std::memcmp(target.data(), expected.data(), kRoom), 0)
        << size << " bytes from " << from << " to " << to;
  }
}

}  // namespace
}  // namespace keel
