#include "trainer/data/sample_order.h"

#include <bit>
#include <numeric>
#include <utility>

#include "common/philox.h"

namespace keel::trainer {

namespace {

// Streams of the epochs' permutations; the epoch is added, and the source above it.
constexpr uint64_t kShuffleStream = 0x73687566666c65 << 8;
// Of more samples an epoch no permutation is held.
constexpr int64_t kMostHeld = int64_t{1} << 25;

uint64_t StreamOf(uint64_t source, int64_t epoch) {
  return (kShuffleStream ^ (source << 40)) + static_cast<uint64_t>(epoch);
}

}  // namespace

SampleOrder::SampleOrder(const std::vector<SourceShare>& sources, uint64_t seed, bool shuffle) {
  std::vector<double> weights;
  for (const SourceShare& source : sources) {
    first_.push_back(size_);
    size_ += source.size;
    weights.push_back(source.weight);
    epochs_.emplace_back(source.size, seed, epochs_.size(), shuffle);
  }
  mixture_.emplace(weights);
}

int64_t SampleOrder::At(int64_t k) {
  if (!mixture_) return epochs_.front().At(k);
  const Mixture::Draw draw = mixture_->At(k);
  return first_[draw.source] + epochs_[draw.source].At(draw.index);
}

int64_t SampleOrder::Epochs::At(int64_t k) {
  if (!shuffle_) return k % size_;
  if (const int64_t epoch = k / size_; epoch != epoch_) Shuffle(epoch);
  return size_ <= kMostHeld ? int64_t{permutation_[static_cast<size_t>(k % size_)]}
                            : Permuted(k % size_);
}

void SampleOrder::Epochs::Shuffle(int64_t epoch) {
  epoch_ = epoch;
  if (size_ > kMostHeld) return;
  // Fisher-Yates.
  permutation_.resize(static_cast<size_t>(size_));
  std::iota(permutation_.begin(), permutation_.end(), uint32_t{0});
  const Philox rng(seed_, StreamOf(source_, epoch));
  for (size_t i = permutation_.size(); i > 1; --i)
    std::swap(permutation_[i - 1], permutation_[static_cast<size_t>(rng.Below(i, i))]);
}

// A Feistel network of four rounds over the next even number of bits, which is a permutation of
// these; walked on until it comes to a sample (Black and Rogaway, 2002), after less than four steps
// on average.
int64_t SampleOrder::Epochs::Permuted(int64_t i) const {
  const auto half = (std::bit_width(static_cast<uint64_t>(size_ - 1)) + 1) / 2;
  const uint64_t mask = (uint64_t{1} << half) - 1;
  const Philox rng(seed_, StreamOf(source_, epoch_));
  auto value = static_cast<uint64_t>(i);
  do {
    uint64_t left = value >> half, right = value & mask;
    for (uint64_t round = 0; round < 4; ++round) {
      const uint64_t mixed = left ^ (rng.Bits64((round << 32) | right) & mask);
      left = right;
      right = mixed;
    }
    value = (left << half) | right;
  } while (value >= static_cast<uint64_t>(size_));
  return static_cast<int64_t>(value);
}

}  // namespace keel::trainer
