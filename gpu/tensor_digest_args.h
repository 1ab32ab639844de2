// The digest of a matrix's values within a larger tensor.
#pragma once

#include <cstdint>

namespace keel::gpu {

inline constexpr int64_t kDigestPart = 1 << 14;

// Parts of what BoxDigest (common/tensors/tensor_digest.h) says of `rows` x `columns` elements of
// 1, 2, 4 or 8 bytes: the sum of all parts (mod 2^64), to the bit. Element (r, c) stands at r *
// stride + c of `data`, and is element index + r * index_stride + c of the tensor.
struct TensorDigest {
  int64_t element_size = 0;
  int64_t rows = 0;
  int64_t columns = 0;
  const void* data = nullptr;
  int64_t stride = 0;
  int64_t index = 0;
  int64_t index_stride = 0;
  int64_t* parts = nullptr;  // [DigestParts(rows * columns)]
};
inline int64_t DigestParts(int64_t elements) { return (elements + kDigestPart - 1) / kDigestPart; }

}  // namespace keel::gpu
