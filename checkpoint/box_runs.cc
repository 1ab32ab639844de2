#include "checkpoint/box_runs.h"

namespace keel::checkpoint {

BoxRuns::BoxRuns(const Box& box, const Box& source, const Box& destination, int64_t element_size) {
  const Dims source_strides = ContiguousStrides(source.size);
  const Dims destination_strides = ContiguousStrides(destination.size);
  const int dims = box.dims();
  for (int d = 0; d < dims; ++d) {
    source_start_ += (box.offset[d] - source.offset[d]) * source_strides[d] * element_size;
    destination_start_ +=
        (box.offset[d] - destination.offset[d]) * destination_strides[d] * element_size;
  }
  // Trailing dims that are whole in both merge into the run, and so does one more.
  outer_ = dims;
  bytes_ = element_size;
  while (outer_ > 0) {
    const int d = --outer_;
    bytes_ *= box.size[d];
    if (box.size[d] != source.size[d] || box.size[d] != destination.size[d]) break;
  }
  sizes_ = Dims::Filled(outer_, 0);
  source_strides_ = sizes_;
  destination_strides_ = sizes_;
  count_ = 1;
  for (int d = 0; d < outer_; ++d) {
    sizes_[d] = box.size[d];
    source_strides_[d] = source_strides[d] * element_size;
    destination_strides_[d] = destination_strides[d] * element_size;
    count_ *= box.size[d];
  }
  if (bytes_ == 0) count_ = 0;
}

std::pair<int64_t, int64_t> BoxRuns::At(int64_t i) const {
  int64_t source = source_start_;
  int64_t destination = destination_start_;
  for (int d = outer_ - 1; d >= 0; --d) {
    const int64_t at = i % sizes_[d];
    i /= sizes_[d];
    source += at * source_strides_[d];
    destination += at * destination_strides_[d];
  }
  return {source, destination};
}

int64_t BoxRuns::FirstEndingAfter(int64_t offset) const {
  int64_t low = 0;
  int64_t high = count_;
  while (low < high) {
    const int64_t middle = low + (high - low) / 2;
    if (At(middle).first + bytes_ > offset) {
      high = middle;
    } else {
      low = middle + 1;
    }
  }
  return low;
}

std::pair<int64_t, int64_t> BoxRuns::SourceRange() const {
  if (count_ == 0) return {0, 0};
  return {At(0).first, At(count_ - 1).first + bytes_};
}

}  // namespace keel::checkpoint
