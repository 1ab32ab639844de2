#include "common/tensors/box.h"

#include <algorithm>
#include <array>
#include <functional>
#include <iterator>
#include <limits>
#include <map>
#include <numeric>
#include <queue>
#include <utility>
#include <vector>

namespace keel {

namespace {

void CheckCount(size_t count) {
  if (count > static_cast<size_t>(kMaxDims)) {
    throw Error(StatusCode::kInternal, "a tensor of " + std::to_string(count) + " dims; at most " +
                                           std::to_string(kMaxDims) + " are supported");
  }
}

// offset + size, or the outermost position there is when the sum lies past it.
int64_t EndOf(const Box& box, int d) {
  int64_t end = 0;
  if (!__builtin_add_overflow(box.offset[d], box.size[d], &end)) return end;
  return box.size[d] < 0 ? std::numeric_limits<int64_t>::min()
                         : std::numeric_limits<int64_t>::max();
}

}  // namespace

Dims::Dims(std::initializer_list<int64_t> values)
    : Dims(std::span(values.begin(), values.size())) {}

Dims::Dims(std::span<const int64_t> values) {
  CheckCount(values.size());
  std::copy(values.begin(), values.end(), values_.begin());
  size_ = static_cast<int>(values.size());
}

Dims Dims::Filled(int count, int64_t value) {
  CheckCount(static_cast<size_t>(count));
  Dims dims;
  dims.size_ = count;
  std::fill_n(dims.values_.begin(), count, value);
  return dims;
}

int64_t Dims::elements() const {
  return std::accumulate(begin(), end(), int64_t{1}, [](int64_t a, int64_t b) { return a * b; });
}

std::string Dims::ToString() const {
  std::string text = "[";
  for (int i = 0; i < size_; ++i) text += (i > 0 ? ", " : "") + std::to_string((*this)[i]);
  return text + "]";
}

bool operator==(const Dims& a, const Dims& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end());
}

Result<int64_t> CheckedElements(const Dims& shape) {
  int64_t product = 1;
  bool zero = false;
  for (int64_t size : shape) {
    if (size < 0)
      return Status(StatusCode::kInvalidData, "negative size in shape " + shape.ToString());
    zero = zero || size == 0;
    if (size > 0 && product > (int64_t{1} << 62) / size) {
      return Status(StatusCode::kInvalidData,
                    "shape " + shape.ToString() + " has too many elements");
    }
    if (size > 0) product *= size;
  }
  return zero ? 0 : product;
}

Dims ContiguousStrides(const Dims& shape) {
  Dims strides = Dims::Filled(shape.size(), 1);
  for (int i = shape.size() - 2; i >= 0; --i)
    strides[i] = strides[i + 1] * std::max<int64_t>(1, shape[i + 1]);
  return strides;
}

Box Box::Whole(const Dims& shape) { return {Dims::Filled(shape.size(), 0), shape}; }

bool Box::Within(const Dims& shape) const {
  if (offset.size() != shape.size() || size.size() != shape.size()) return false;
  for (int i = 0; i < shape.size(); ++i) {
    if (offset[i] < 0 || size[i] < 0 || offset[i] > shape[i] || size[i] > shape[i] - offset[i])
      return false;
  }
  return true;
}

bool Box::empty() const {
  return std::any_of(size.begin(), size.end(), [](int64_t extent) { return extent <= 0; });
}

bool Box::Contains(const Box& other) const {
  if (!(dims() == other.dims() && offset.size() == other.offset.size())) return false;
  for (int i = 0; i < dims(); ++i) {
    if (other.offset[i] < offset[i] || other.size[i] < 0 || other.size[i] > size[i]) return false;
    // Unsigned: the distance between any two offsets fits.
    const uint64_t before =
        static_cast<uint64_t>(other.offset[i]) - static_cast<uint64_t>(offset[i]);
    if (before > static_cast<uint64_t>(size[i] - other.size[i])) return false;
  }
  return true;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (int i = 0; i < dims(); ++i) {
    const std::string start = std::to_string(offset[i]);
    int64_t end = 0;
    const bool plain = size[i] >= 0 && !__builtin_add_overflow(offset[i], size[i], &end);
    text += (i > 0 ? ", " : "") + start + ":" +
            (plain ? std::to_string(end) : start + "+" + std::to_string(size[i]));
  }
  return text + "]";
}

bool operator==(const Box& a, const Box& b) { return a.offset == b.offset && a.size == b.size; }

std::optional<Box> Intersect(const Box& a, const Box& b) {
  if (a.dims() != b.dims()) return std::nullopt;
  Box common = a;
  for (int i = 0; i < a.dims(); ++i) {
    const int64_t begin = std::max(a.offset[i], b.offset[i]);
    const int64_t end = std::min(EndOf(a, i), EndOf(b, i));
    if (begin >= end) return std::nullopt;
    common.offset[i] = begin;
    common.size[i] = end - begin;
  }
  return common;
}

namespace {

// Finds two boxes of a set that overlap; all have the same number of dims and end after they start.
// Works on groups of indexes, which it reorders.
class OverlapFinder {
 public:
  using Pair = std::optional<std::pair<size_t, size_t>>;

  OverlapFinder(std::span<const Box> boxes, int dims) : boxes_(boxes), dims_(dims) {}

  Pair Find(std::span<size_t> group, int depth = 0) const {
    if (group.size() <= kFew) return FindAmongFew(group);
    // Only dims in which the boxes differ can keep them apart.
    std::vector<int> differ;
    for (int d = 0; d < dims_; ++d) {
      if (Differ(group, d)) differ.push_back(d);
    }
    if (differ.empty()) return std::pair{group[0], group[1]};
    if (differ.size() <= 2) return SweepPlane(group, differ.front(), differ.back());
    // A cut that no box crosses makes two problems of one; a grid then has a dim less.
    for (const int d : differ) {
      if (depth == kMaxDepth) break;
      Sort(group, d);
      if (Next(group, 0, d) == group.size()) continue;
      for (size_t begin = 0; begin < group.size();) {
        const size_t end = Next(group, begin, d);
        if (const Pair found = Find(group.subspan(begin, end - begin), depth + 1)) return found;
        begin = end;
      }
      return std::nullopt;
    }
    return SweepSpace(group, differ);
  }

 private:
  static constexpr size_t kFew = 8;
  static constexpr int kMaxDepth = 4 * kMaxDims;  // bounds the work on a staircase of cuts

  int64_t Start(size_t box, int d) const { return boxes_[box].offset[d]; }
  int64_t End(size_t box, int d) const { return EndOf(boxes_[box], d); }

  bool Differ(std::span<const size_t> group, int d) const {
    return std::any_of(group.begin(), group.end(), [&](size_t box) {
      return Start(box, d) != Start(group[0], d) || End(box, d) != End(group[0], d);
    });
  }

  void Sort(std::span<size_t> group, int d) const {
    const auto less = [&](size_t a, size_t b) { return Start(a, d) < Start(b, d); };
    if (!std::is_sorted(group.begin(), group.end(), less)) {
      std::sort(group.begin(), group.end(), less);
    }
  }

  // The first box from `begin` on that starts where all before it have ended.
  size_t Next(std::span<const size_t> group, size_t begin, int d) const {
    int64_t reach = End(group[begin], d);
    size_t i = begin + 1;
    for (; i < group.size() && Start(group[i], d) < reach; ++i) {
      reach = std::max(reach, End(group[i], d));
    }
    return i;
  }

  Pair FindAmongFew(std::span<const size_t> group) const {
    for (size_t i = 0; i < group.size(); ++i) {
      for (size_t j = 0; j < i; ++j) {
        if (Intersect(boxes_[group[j]], boxes_[group[i]])) return std::pair{group[j], group[i]};
      }
    }
    return std::nullopt;
  }

  // Boxes that differ in dims `a` and `b` at most (which may be one dim). Sweeps along `a`; the
  // open boxes are disjoint along `b`, so that the next one can only meet its two neighbours.
  Pair SweepPlane(std::span<size_t> group, int a, int b) const {
    Sort(group, a);
    using EndAndBox = std::pair<int64_t, size_t>;
    std::priority_queue<EndAndBox, std::vector<EndAndBox>, std::greater<>> ends;
    std::map<int64_t, size_t> open;  // by start along b
    for (const size_t box : group) {
      while (!ends.empty() && ends.top().first <= Start(box, a)) {
        open.erase(Start(ends.top().second, b));
        ends.pop();
      }
      const auto after = open.lower_bound(Start(box, b));
      if (after != open.end() && after->first < End(box, b)) return std::pair{after->second, box};
      if (after != open.begin()) {
        const size_t before = std::prev(after)->second;
        if (End(before, b) > Start(box, b)) return std::pair{before, box};
      }
      open.emplace_hint(after, Start(box, b), box);
      ends.emplace(End(box, a), box);
    }
    return std::nullopt;
  }

  // Along the dim with the most distinct starts, so that few boxes are open at a time.
  Pair SweepSpace(std::span<size_t> group, std::span<const int> differ) const {
    int sweep = differ.front();
    size_t most = 0;
    for (const int d : differ) {
      Sort(group, d);
      size_t distinct = 1;
      for (size_t i = 1; i < group.size(); ++i) {
        distinct += Start(group[i], d) != Start(group[i - 1], d) ? 1 : 0;
      }
      if (distinct > most) {
        most = distinct;
        sweep = d;
      }
    }
    Sort(group, sweep);
    std::multimap<int64_t, size_t> open;  // by end
    for (const size_t box : group) {
      open.erase(open.begin(), open.upper_bound(Start(box, sweep)));
      for (const auto& [end, other] : open) {
        if (Intersect(boxes_[box], boxes_[other])) return std::pair{other, box};
      }
      open.emplace(End(box, sweep), box);
    }
    return std::nullopt;
  }

  std::span<const Box> boxes_;
  int dims_;
};

}  // namespace

std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const Box> boxes) {
  std::array<std::vector<size_t>, kMaxDims + 1> filled;  // by number of dims
  for (size_t i = 0; i < boxes.size(); ++i) {
    const bool holds_something = Intersect(boxes[i], boxes[i]).has_value();
    if (holds_something) filled[static_cast<size_t>(boxes[i].dims())].push_back(i);
  }
  for (int dims = 0; dims <= kMaxDims; ++dims) {
    std::vector<size_t>& group = filled[static_cast<size_t>(dims)];
    if (const auto found = OverlapFinder(boxes, dims).Find(group)) return found;
  }
  return std::nullopt;
}

Status CheckExactCover(const Box& whole, std::span<const Box> boxes, std::string_view what) {
  const auto fail = [&](const std::string& text) {
    return Status(StatusCode::kInvalidData, std::string(what) + ": " + text);
  };
  const Result<int64_t> wanted = CheckedElements(whole.size);
  if (!wanted.ok()) return wanted.status().WithContext(what);
  // Unsigned, since boxes that overlap may add up to anything; it is exact once none do.
  uint64_t covered = 0;
  for (const Box& box : boxes) {
    if (!whole.Contains(box)) {
      return fail("box " + box.ToString() + " lies outside " + whole.ToString());
    }
    covered += static_cast<uint64_t>(box.elements());
  }
  if (const auto overlap = FindOverlap(boxes)) {
    if (whole.dims() == 0) {
      return fail(std::to_string(boxes.size()) + " sources of a scalar, expected 1");
    }
    return fail("boxes " + boxes[overlap->first].ToString() + " and " +
                boxes[overlap->second].ToString() + " overlap");
  }
  if (covered != static_cast<uint64_t>(*wanted)) {
    return fail(std::to_string(covered) + " of " + std::to_string(*wanted) + " elements of " +
                whole.ToString() + " are covered");
  }
  return Status::Ok();
}

}  // namespace keel
