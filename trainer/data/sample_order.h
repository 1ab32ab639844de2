// SampleOrder: which sample is the k-th of the whole run. The only state is k: the number of
// samples all ranks have consumed.
#pragma once

#include <cstdint>
#include <vector>

namespace keel::trainer {

class SampleOrder {
 public:
  // `size` samples an epoch. With `shuffle` each epoch is a permutation drawn from (seed, epoch).
  SampleOrder(int64_t size, uint64_t seed, bool shuffle)
      : size_(size), seed_(seed), shuffle_(shuffle) {}

  // Index of the sample at global position k >= 0; positions run on through the epochs.
  int64_t At(int64_t k);
  int64_t size() const { return size_; }

 private:
  int64_t size_;
  uint64_t seed_;
  bool shuffle_;
  int64_t epoch_ = -1;  // of permutation_
  std::vector<int64_t> permutation_;
};

}  // namespace keel::trainer
