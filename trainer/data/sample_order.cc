#include "trainer/data/sample_order.h"

#include <numeric>
#include <utility>

#include "common/philox.h"

namespace keel::trainer {

namespace {

// Streams of the epochs' permutations; the epoch is added.
constexpr uint64_t kShuffleStream = 0x73687566666c65 << 8;

}  // namespace

int64_t SampleOrder::At(int64_t k) {
  const int64_t epoch = k / size_;
  if (!shuffle_) return k % size_;
  if (epoch != epoch_) {
    // Fisher-Yates.
    epoch_ = epoch;
    permutation_.resize(static_cast<size_t>(size_));
    std::iota(permutation_.begin(), permutation_.end(), int64_t{0});
    const Philox rng(seed_, kShuffleStream + static_cast<uint64_t>(epoch));
    for (size_t i = permutation_.size(); i > 1; --i) {
      std::swap(permutation_[i - 1], permutation_[static_cast<size_t>(rng.Below(i, i))]);
    }
  }
  return permutation_[static_cast<size_t>(k % size_)];
}

}  // namespace keel::trainer
