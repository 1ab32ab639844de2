#include "parallel/gradients/bucket_layout.h"

#include <algorithm>
#include <numeric>

namespace keel::parallel {

namespace {

int64_t RoundUp(int64_t value, int64_t unit) { return (value + unit - 1) / unit * unit; }

// Lays `members` out in chunks of `chunk` elements; returns the end, or -1 when a parameter cannot
// be placed before the end of the last chunk.
int64_t LayOut(std::span<const ParameterExtent> parameters, const std::vector<int>& members, int dp,
               int64_t chunk, std::vector<ParameterPlace>& places) {
  const int64_t capacity = dp * chunk;
  int64_t at = 0;
  for (int p : members) {
    const ParameterExtent& extent = parameters[static_cast<size_t>(p)];
    const int64_t size = extent.rows * extent.row_size;
    // Cuts lie at multiples of `chunk`. The first one inside the parameter decides the padding; the
    // others must then fall on rows as well, which holds when the chunk is a multiple of the row or
    // the parameter spans one cut only. Otherwise move to a start where every cut inside is on a
    // row.
    int64_t start = at;
    while (true) {
      const int64_t first_cut = RoundUp(start + 1, chunk);
      if (first_cut >= start + size || extent.row_size == 1)
        break;  // no cut inside, or any will do
      const int64_t into_row = (first_cut - start) % extent.row_size;
      if (into_row == 0 && (start + size <= first_cut + chunk || chunk % extent.row_size == 0)) {
        break;
      }
      if (into_row != 0) {
        start += into_row;  // shifts the parameter so that first_cut falls on a row start
      } else {
        start = first_cut;  // spans several cuts that cannot all be rows: begin at the cut
        if (start + size > first_cut + chunk && chunk % extent.row_size != 0) return -1;
      }
      if (start + size > capacity) return -1;
    }
    if (start + size > capacity) return -1;
    places[static_cast<size_t>(p)].offset = start;
    at = start + size;
  }
  return at;
}

}  // namespace

BucketLayout PlanBuckets(std::span<const ParameterExtent> parameters, int dp,
                         int64_t bucket_elements, int64_t alignment) {
  BucketLayout layout;
  layout.dp = dp;
  layout.places.resize(parameters.size());

  // 1. Group: consecutive parameters up to the bucket size; late ones together at the end.
  std::vector<int> late;
  int64_t filled = 0;
  for (int p = 0; p < static_cast<int>(parameters.size()); ++p) {
    const ParameterExtent& extent = parameters[static_cast<size_t>(p)];
    if (extent.own_bucket) {
      late.push_back(p);
      continue;
    }
    if (layout.buckets.empty() || filled >= bucket_elements) {
      layout.buckets.emplace_back();
      filled = 0;
    }
    layout.buckets.back().parameters.push_back(p);
    filled += extent.rows * extent.row_size;
  }
  if (!late.empty()) {
    layout.buckets.emplace_back();
    layout.buckets.back().parameters = late;
    layout.buckets.back().late = true;
  }

  // 2. Lay each out with the smallest chunk that fits.
  for (int b = 0; b < static_cast<int>(layout.buckets.size()); ++b) {
    Bucket& bucket = layout.buckets[static_cast<size_t>(b)];
    int64_t size = 0;
    int64_t unit = alignment;
    for (int p : bucket.parameters) {
      const ParameterExtent& extent = parameters[static_cast<size_t>(p)];
      size += extent.rows * extent.row_size;
    }
    int64_t chunk = RoundUp((size + dp - 1) / dp, unit);
    for (int attempt = 0;; ++attempt) {
      if (dp == 1 || LayOut(parameters, bucket.parameters, dp, chunk, layout.places) >= 0) break;
      // A parameter longer than a chunk may span several cuts; they all fall on rows when the chunk
      // is a multiple of its row.
      if (attempt == 0) {
        for (int p : bucket.parameters) {
          const ParameterExtent& extent = parameters[static_cast<size_t>(p)];
          if (extent.rows * extent.row_size <= chunk) continue;
          const int64_t common = std::lcm(unit, extent.row_size);
          if (common <= std::max(chunk, extent.row_size)) unit = common;
        }
      }
      chunk = RoundUp(chunk + 1, unit);
    }
    if (dp == 1) {
      int64_t at = 0;
      for (int p : bucket.parameters) {
        const ParameterExtent& extent = parameters[static_cast<size_t>(p)];
        layout.places[static_cast<size_t>(p)].offset = at;
        at += extent.rows * extent.row_size;
      }
    }
    for (int p : bucket.parameters) layout.places[static_cast<size_t>(p)].bucket = b;
    bucket.chunk = chunk;
    bucket.offset = layout.total;
    layout.total += dp * chunk;
  }
  return layout;
}

void BucketLayout::Rename(std::span<const size_t> order) {
  const std::vector<ParameterPlace> planned = places;
  for (size_t k = 0; k < order.size(); ++k) places[order[k]] = planned[k];
  for (Bucket& bucket : buckets)
    for (int& p : bucket.parameters) p = static_cast<int>(order[static_cast<size_t>(p)]);
}

BucketLayout::Rows BucketLayout::OwnedRows(std::span<const ParameterExtent> parameters,
                                           int parameter, int dp_rank) const {
  const ParameterExtent& extent = parameters[static_cast<size_t>(parameter)];
  const ParameterPlace& place = places[static_cast<size_t>(parameter)];
  const int64_t chunk = buckets[static_cast<size_t>(place.bucket)].chunk;
  const int64_t begin = std::max(place.offset, dp_rank * chunk);
  const int64_t end = std::min(place.offset + extent.rows * extent.row_size, (dp_rank + 1) * chunk);
  if (begin >= end) return {};
  return {(begin - place.offset) / extent.row_size, (end - place.offset) / extent.row_size};
}

}  // namespace keel::parallel
