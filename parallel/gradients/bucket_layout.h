// Where each parameter lies in the flat gradient and parameter buffers, and which rows each
// data-parallel rank owns (ZeRO-1; Rajbhandari et al., SC'20). Pure; no torch.
//
// A bucket is split into `dp` equal chunks, one per rank, for reduce-scatter and all-gather.
// Padding stands only between parameters: before a parameter that would span a cut, so that the cut
// falls on one of its rows. Each parameter stays contiguous, and each rank owns at most one run of
// rows of it.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <vector>

namespace keel::parallel {

struct ParameterExtent {
  int64_t rows = 0;         // dim 0; a 1-D parameter has one element a row
  int64_t row_size = 1;     // elements a row
  bool own_bucket = false;  // reduced late, apart from the others (see GradBuffer)
};

struct ParameterPlace {
  int bucket = 0;
  int64_t offset = 0;  // elements from the bucket's start
};

struct Bucket {
  int64_t offset = 0;  // elements from the buffer's start
  int64_t chunk = 0;   // elements per data-parallel rank; the bucket has dp * chunk
  std::vector<int> parameters;
  bool late = false;  // only parameters with own_bucket
};

struct BucketLayout {
  int dp = 1;
  std::vector<ParameterPlace> places;  // by parameter
  std::vector<Bucket> buckets;
  int64_t total = 0;  // elements of the whole buffer

  // Elements from the buffer's start to where the parameter begins.
  int64_t OffsetOf(size_t parameter) const {
    const ParameterPlace& place = places[parameter];
    return buckets[static_cast<size_t>(place.bucket)].offset + place.offset;
  }

  // Parameter k of the plan is parameter order[k] from now on.
  void Rename(std::span<const size_t> order);

  // Rows [begin, end) of a parameter that `dp_rank` owns; empty when begin == end.
  struct Rows {
    int64_t begin = 0;
    int64_t end = 0;
  };
  Rows OwnedRows(std::span<const ParameterExtent> parameters, int parameter, int dp_rank) const;
};

// Parameters in the given order fill buckets of about `bucket_elements`; order them as backward
// finishes them, so that early buckets are reduced while later ones are still computed. Chunks are
// multiples of `alignment` elements.
BucketLayout PlanBuckets(std::span<const ParameterExtent> parameters, int dp,
                         int64_t bucket_elements, int64_t alignment = 64);

}  // namespace keel::parallel
