#include "checkpoint/read/box_runs.h"

namespace keel::checkpoint {

BoxRuns::BoxRuns(const Box& box, const Box& source, const Box& destination, int64_t element_size)
    : BoxRuns(box, source, destination, ContiguousStrides(destination.size), element_size) {}

BoxRuns::BoxRuns(const Box& box, const Box& source, const Box& destination,
                 const Dims& destination_strides, int64_t element_size) {
  const Dims source_strides = ContiguousStrides(source.size);
  const int dims = box.dims();
  for (int d = 0; d < dims; ++d) {
    source_start_ += (box.offset[d] - source.offset[d]) * source_strides[d] * element_size;
    destination_start_ +=
        (box.offset[d] - destination.offset[d]) * destination_strides[d] * element_size;
  }
  // Trailing dims that follow on without a gap on both sides make one run.
  outer_ = dims;
  int64_t run = 1;
  while (outer_ > 0) {
    const int d = outer_ - 1;
    if (box.size[d] != 1 && (source_strides[d] != run || destination_strides[d] != run)) break;
    run *= box.size[d];
    outer_ = d;
  }
  bytes_ = run * element_size;
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

Dims BoxRuns::IndexOf(int64_t i) const {
  Dims at = sizes_;
  for (int d = outer_ - 1; d >= 0; --d) {
    at[d] = i % sizes_[d];
    i /= sizes_[d];
  }
  return at;
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
  if (count_ == 0 || offset < source_start_) return 0;
  // The last run that starts at or before `offset`: a stride is never less than what lies within.
  int64_t rest = offset - source_start_;
  int64_t i = 0;
  for (int d = 0; d < outer_; ++d) {
    const int64_t at =
        source_strides_[d] > 0 ? std::min(rest / source_strides_[d], sizes_[d] - 1) : 0;
    rest -= at * source_strides_[d];
    i = i * sizes_[d] + at;
  }
  return rest < bytes_ ? i : i + 1;
}

std::pair<int64_t, int64_t> BoxRuns::SourceRange() const {
  if (count_ == 0) return {0, 0};
  return {At(0).first, At(count_ - 1).first + bytes_};
}

BoxRuns::Extent BoxRuns::Within(int64_t low, int64_t high) const {
  const int64_t first = FirstEndingAfter(low);
  if (first >= count_) return {};
  Extent extent;
  const int64_t first_source = At(first).first;
  if (first_source >= high) return {};
  extent.begin = std::max(first_source, low);
  // The last run that starts before `high`.
  int64_t last = FirstEndingAfter(high - 1);
  if (last == count_ || At(last).first >= high) --last;
  const int64_t last_end = At(last).first + bytes_;
  extent.end = std::min(last_end, high);
  extent.bytes =
      (last - first + 1) * bytes_ - (extent.begin - first_source) - (last_end - extent.end);
  return extent;
}

}  // namespace keel::checkpoint
