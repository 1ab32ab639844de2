// SampleOrder: which sample is the k-th of the whole run. The only state is k: the number of
// samples all ranks have consumed.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <vector>

#include "trainer/data/mixture.h"

namespace keel::trainer {

// Samples of one source of a mixture.
struct SourceShare {
  int64_t size = 0;
  double weight = 1;
};

// What a task counts trainer.total_epochs in.
enum class EpochUnit {
  kSamples,       // each is taken so often: the last step takes what is left
  kWholeBatches,  // of data.train_batch_size samples, to the nearest number of them
  kConsumed,  // likewise, where a step may take more than one: how many there are shows as they go
};

// Memory: 4 bytes a sample of up to 2^25, of each source; beyond, none.
class SampleOrder {
 public:
  // `size` samples an epoch. With `shuffle` each epoch is a permutation drawn from (seed, epoch).
  SampleOrder(int64_t size, uint64_t seed, bool shuffle) : size_(size) {
    epochs_.emplace_back(size, seed, 0, shuffle);
  }
  // Sources whose samples follow each other, drawn by weight (mixture.h), each in epochs of its
  // own: the j-th draw of a source is its j-th sample, whatever the others are.
  SampleOrder(const std::vector<SourceShare>& sources, uint64_t seed, bool shuffle);

  // Index of the sample at global position k >= 0; positions run on through the epochs.
  int64_t At(int64_t k);
  int64_t size() const { return size_; }

 private:
  // The order of one source.
  class Epochs {
   public:
    Epochs(int64_t size, uint64_t seed, uint64_t source, bool shuffle)
        : size_(size), seed_(seed), source_(source), shuffle_(shuffle) {}
    int64_t At(int64_t k);

   private:
    void Shuffle(int64_t epoch);
    int64_t Permuted(int64_t i) const;  // of many samples

    int64_t size_;
    uint64_t seed_;
    uint64_t source_;
    bool shuffle_;
    int64_t epoch_ = -1;  // of permutation_
    std::vector<uint32_t> permutation_;
  };

  int64_t size_ = 0;
  std::vector<Epochs> epochs_;
  std::vector<int64_t> first_;  // of each source
  std::optional<Mixture> mixture_;
};

}  // namespace keel::trainer
