// BoxRuns: the contiguous byte runs of a box inside two boxes that contain it.
#pragma once

#include <algorithm>
#include <cstdint>
#include <utility>

#include "common/tensors/box.h"

namespace keel::checkpoint {

// `source` is dense and row-major, the destination strided; `box` lies in both. All runs have the
// same length, and their source offsets ascend. Value type; no allocation.
class BoxRuns {
 public:
  // Bytes of the runs in a range of the source, and the range that they span.
  struct Extent {
    int64_t begin = 0, end = 0;
    int64_t bytes = 0;
  };

  BoxRuns() = default;
  BoxRuns(const Box& box, const Box& source, const Box& destination, int64_t element_size);
  // Strides in elements.
  BoxRuns(const Box& box, const Box& source, const Box& destination,
          const Dims& destination_strides, int64_t element_size);

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }  // of one run
  // Byte offsets of run i in the source's and in the destination's data.
  std::pair<int64_t, int64_t> At(int64_t i) const;
  // The lowest i whose run ends after source offset `offset`; count() when there is none.
  int64_t FirstEndingAfter(int64_t offset) const;
  // First byte of the first run and end of the last one, in the source.
  std::pair<int64_t, int64_t> SourceRange() const;
  // Returns what lies in the source's [low, high).
  Extent Within(int64_t low, int64_t high) const;

  // body(source offset, destination offset, bytes) for each run, or part of one, in the source's
  // [low, high), ascending.
  template <typename Body>
  void ForEach(int64_t low, int64_t high, const Body& body) const {
    int64_t i = FirstEndingAfter(low);
    if (i >= count_) return;
    auto [source, destination] = At(i);
    Dims at = IndexOf(i);
    for (;;) {
      if (source >= high) return;
      const int64_t from = std::max(source, low);
      const int64_t to = std::min(source + bytes_, high);
      body(from, destination + (from - source), to - from);
      if (++i == count_) return;
      for (int d = outer_ - 1;; --d) {
        source += source_strides_[d];
        destination += destination_strides_[d];
        if (++at[d] < sizes_[d]) break;
        source -= source_strides_[d] * sizes_[d];
        destination -= destination_strides_[d] * sizes_[d];
        at[d] = 0;
      }
    }
  }

 private:
  Dims IndexOf(int64_t i) const;

  int outer_ = 0;  // dims that are enumerated
  int64_t count_ = 0;
  int64_t bytes_ = 0;
  int64_t source_start_ = 0, destination_start_ = 0;
  Dims sizes_, source_strides_, destination_strides_;  // of the outer dims; strides in bytes
};

}  // namespace keel::checkpoint
