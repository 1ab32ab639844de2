// BoxRuns: the contiguous byte runs of a box inside two row-major boxes that contain it.
#pragma once

#include <cstdint>
#include <utility>

#include "common/box.h"

namespace keel::checkpoint {

// `source` and `destination` are dense boxes; `box` lies in both. All runs have the same length,
// and their source offsets ascend. Value type; no allocation.
class BoxRuns {
 public:
  BoxRuns() = default;
  BoxRuns(const Box& box, const Box& source, const Box& destination, int64_t element_size);

  int64_t count() const { return count_; }
  int64_t bytes() const { return bytes_; }  // of one run
  // Byte offsets of run i in the source's and in the destination's data.
  std::pair<int64_t, int64_t> At(int64_t i) const;
  // The lowest i whose run ends after source offset `offset`; count() when there is none.
  int64_t FirstEndingAfter(int64_t offset) const;
  // First byte of the first run and end of the last one, in the source.
  std::pair<int64_t, int64_t> SourceRange() const;

 private:
  int outer_ = 0;  // dims that are enumerated
  int64_t count_ = 0;
  int64_t bytes_ = 0;
  int64_t source_start_ = 0, destination_start_ = 0;
  Dims sizes_, source_strides_, destination_strides_;  // of the outer dims; strides in bytes
};

}  // namespace keel::checkpoint
