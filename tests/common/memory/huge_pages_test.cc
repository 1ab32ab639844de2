#include "common/memory/huge_pages.h"

#include <gtest/gtest.h>

#include <cstdint>
#include <numeric>
#include <vector>

namespace keel {
namespace {

TEST(HugePages, TablesOfAnySizeKeepWhatIsInThem) {
  for (const size_t count : {size_t{0}, size_t{1}, size_t{1000}, size_t{262144}, size_t{1000003}}) {
    std::vector<uint64_t, HugePages<uint64_t>> table(count);
    EXPECT_EQ(std::accumulate(table.begin(), table.end(), uint64_t{0}), 0u);
    std::iota(table.begin(), table.end(), uint64_t{1});
    table.push_back(count + 1);  // moves it
    const auto copy = table;
    table.clear();
    ASSERT_EQ(copy.size(), count + 1);
    for (size_t i = 0; i < copy.size(); ++i) ASSERT_EQ(copy[i], i + 1);
    constexpr size_t kHugePage = size_t{2} << 20;
    if (copy.capacity() * sizeof(uint64_t) >= kHugePage) {
      EXPECT_EQ(reinterpret_cast<uintptr_t>(copy.data()) % kHugePage, 0u);
    }
  }
}

}  // namespace
}  // namespace keel
