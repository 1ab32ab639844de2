#include "trainer/engine/copy_order.h"

#include <algorithm>

namespace keel::trainer {

namespace {

constexpr int64_t kPage = 4096;  // pieces begin at pages

int64_t Quotient(int64_t a, int64_t b) { return (a + b - 1) / b; }

}  // namespace

std::vector<CopyPiece> CopyOrder(std::span<const int64_t> sizes, int64_t most) {
  int64_t rounds = 1;
  for (const int64_t size : sizes)
    rounds = std::max(rounds, Quotient(Quotient(size, kPage), std::max<int64_t>(1, most / kPage)));
  // Where the round's piece of an array begins.
  const auto begin = [&](size_t array, int64_t round) {
    return std::min(sizes[array], Quotient(sizes[array], kPage) * round / rounds * kPage);
  };
  std::vector<CopyPiece> order;
  for (int64_t round = 0; round < rounds; ++round) {
    for (size_t array = 0; array < sizes.size(); ++array) {
      const int64_t at = begin(array, round);
      const int64_t bytes = begin(array, round + 1) - at;
      if (bytes > 0) order.push_back({array, at, bytes});
    }
  }
  return order;
}

}  // namespace keel::trainer
