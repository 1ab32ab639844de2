// Dims and Box: regions of a tensor in global coordinates.
//
// Everything that moves between layouts is a box of a canonical tensor; see shard_table.h.
#pragma once

#include <array>
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <utility>

#include "common/status.h"

namespace keel {

inline constexpr int kMaxDims = 6;

// Up to kMaxDims sizes or offsets, without an allocation. Value type.
class Dims {
 public:
  Dims() = default;
  Dims(std::initializer_list<int64_t> values);
  explicit Dims(std::span<const int64_t> values);  // throws Error(kInternal) above kMaxDims
  static Dims Filled(int count, int64_t value);    // throws likewise

  int size() const { return size_; }
  bool empty() const { return size_ == 0; }
  int64_t& operator[](int i) { return values_[static_cast<size_t>(i)]; }
  int64_t operator[](int i) const { return values_[static_cast<size_t>(i)]; }
  const int64_t* begin() const { return values_.data(); }
  const int64_t* end() const { return values_.data() + size_; }
  // Product; 1 when there are no dims. Overflow is the caller's to exclude (CheckedElements).
  int64_t elements() const;
  std::string ToString() const;  // "[3, 4]"
  friend bool operator==(const Dims& a, const Dims& b);
  friend auto operator<=>(const Dims& a, const Dims& b) = delete;

 private:
  std::array<int64_t, kMaxDims> values_{};
  int size_ = 0;
};

// The product, or kInvalidData when a size is negative or the product exceeds 2^62.
Result<int64_t> CheckedElements(const Dims& shape);
// Row-major strides in elements.
Dims ContiguousStrides(const Dims& shape);

// What comes from a file or a peer may hold any numbers: all but elements() take them without
// overflow.
struct Box {
  Dims offset;  // inclusive start per dim
  Dims size;    // extent per dim

  static Box Whole(const Dims& shape);

  int dims() const { return size.size(); }
  int64_t elements() const { return size.elements(); }
  bool empty() const;  // no extent in some dim; a box without dims is one element
  // Lies inside a tensor of this shape: same number of dims, offsets and ends in range.
  bool Within(const Dims& shape) const;
  bool Contains(const Box& other) const;
  std::string ToString() const;  // "[0:4, 8:16]"; "[9:9+-4]" where the end is before the start
  friend bool operator==(const Box& a, const Box& b);
};

// The common region; nothing when it is empty or the numbers of dims differ. Boxes without dims
// (scalars) intersect.
std::optional<Box> Intersect(const Box& a, const Box& b);

// Two boxes of `boxes`, by index, that share an element; nothing when all are disjoint. O(n log n)
// for boxes that differ in at most two dims, so for all cuts of vectors and matrices, and for grids
// in any number of dims; up to n^2 for irregular cuts of three dims at once.
std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const Box> boxes);

// Proves that `boxes` cover `whole` exactly once: none outside, no overlap, no gap. The error
// starts with `what` and names the boxes that lie outside or overlap, or counts what is missing.
Status CheckExactCover(const Box& whole, std::span<const Box> boxes, std::string_view what);

}  // namespace keel
