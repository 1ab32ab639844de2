// Bins against the plain definition; TRL's counts are in tests/oracles/token_data_test.py.
#include "trainer/data/tokens/best_fit.h"

#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <algorithm>
#include <numeric>
#include <random>

namespace keel::trainer {
namespace {

// Each item, the longest first, into the fullest bin that takes it.
size_t BinsByDefinition(std::vector<int32_t> lengths, int32_t capacity) {
  std::sort(lengths.rbegin(), lengths.rend());
  std::vector<int32_t> rooms;
  for (const int32_t length : lengths) {
    int32_t* best = nullptr;
    for (int32_t& room : rooms) {
      if (room >= length && (best == nullptr || room < *best)) best = &room;
    }
    if (best == nullptr) best = &rooms.emplace_back(capacity);
    *best -= length;
  }
  return rooms.size();
}

TEST(BestFitTest, BinsAreAsManyAsTheDefinitionsAndHoldEachItemOnce) {
  std::mt19937 random(3);
  for (int round = 0; round < 400; ++round) {
    const auto capacity = static_cast<int32_t>(1 + random() % (round % 7 == 0 ? 20000 : 200));
    std::vector<int32_t> lengths(random() % 300);
    for (int32_t& length : lengths)
      length = static_cast<int32_t>(1 + random() % static_cast<uint32_t>(capacity));
    const Bins bins = PackBestFit(lengths, capacity);
    ASSERT_EQ(static_cast<size_t>(bins.size()), BinsByDefinition(lengths, capacity));
    std::vector<int32_t> seen;
    int32_t last_first = -1;
    for (int64_t b = 0; b < bins.size(); ++b) {
      int64_t sum = 0;
      for (const int32_t item : bins.Items(b)) sum += lengths[static_cast<size_t>(item)];
      ASSERT_LE(sum, capacity);
      ASSERT_TRUE(std::is_sorted(bins.Items(b).begin(), bins.Items(b).end()));
      ASSERT_LT(last_first, bins.Items(b).front());
      last_first = bins.Items(b).front();
      seen.insert(seen.end(), bins.Items(b).begin(), bins.Items(b).end());
    }
    std::sort(seen.begin(), seen.end());
    std::vector<int32_t> all(lengths.size());
    std::iota(all.begin(), all.end(), 0);
    ASSERT_EQ(seen, all);
  }
}

}  // namespace
}  // namespace keel::trainer
