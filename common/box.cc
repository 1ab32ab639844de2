#include "common/box.h"

#include <algorithm>
#include <map>
#include <numeric>
#include <vector>

namespace keel {

Dims::Dims(std::initializer_list<int64_t> values)
    : Dims(std::span(values.begin(), values.size())) {}

Dims::Dims(std::span<const int64_t> values) {
  if (values.size() > kMaxDims) {
    throw Error(StatusCode::kInternal, "a tensor of " + std::to_string(values.size()) +
                                           " dims; at most " + std::to_string(kMaxDims) +
                                           " are supported");
  }
  std::copy(values.begin(), values.end(), values_.begin());
  size_ = static_cast<int>(values.size());
}

Dims Dims::Filled(int count, int64_t value) {
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

bool Box::Contains(const Box& other) const {
  if (dims() != other.dims()) return false;
  for (int i = 0; i < dims(); ++i) {
    if (other.offset[i] < offset[i] || other.offset[i] + other.size[i] > offset[i] + size[i])
      return false;
  }
  return true;
}

std::string Box::ToString() const {
  std::string text = "[";
  for (int i = 0; i < dims(); ++i) {
    text +=
        (i > 0 ? ", " : "") + std::to_string(offset[i]) + ":" + std::to_string(offset[i] + size[i]);
  }
  return text + "]";
}

bool operator==(const Box& a, const Box& b) { return a.offset == b.offset && a.size == b.size; }

std::optional<Box> Intersect(const Box& a, const Box& b) {
  Box common = a;
  for (int i = 0; i < a.dims(); ++i) {
    const int64_t begin = std::max(a.offset[i], b.offset[i]);
    const int64_t end = std::min(a.offset[i] + a.size[i], b.offset[i] + b.size[i]);
    if (begin >= end) return std::nullopt;
    common.offset[i] = begin;
    common.size[i] = end - begin;
  }
  return common;
}

namespace {

// Two of `boxes` (by index) that overlap, or nothing. Sweeps along the dim in which the boxes have
// the most distinct starts, so that grids and row cuts stay near n log n.
std::optional<std::pair<size_t, size_t>> FindOverlap(std::span<const Box> boxes, int dims) {
  int sweep = 0;
  size_t most = 0;
  for (int d = 0; d < dims; ++d) {
    std::vector<int64_t> starts;
    for (const Box& box : boxes) starts.push_back(box.offset[d]);
    std::sort(starts.begin(), starts.end());
    const auto distinct =
        static_cast<size_t>(std::unique(starts.begin(), starts.end()) - starts.begin());
    if (distinct > most) {
      most = distinct;
      sweep = d;
    }
  }
  std::vector<size_t> order(boxes.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::sort(order.begin(), order.end(),
            [&](size_t a, size_t b) { return boxes[a].offset[sweep] < boxes[b].offset[sweep]; });
  std::multimap<int64_t, size_t> active;  // by end
  for (size_t index : order) {
    const Box& box = boxes[index];
    active.erase(active.begin(), active.upper_bound(box.offset[sweep]));
    for (const auto& [end, other] : active) {
      if (Intersect(box, boxes[other])) return std::pair{other, index};
    }
    active.emplace(box.offset[sweep] + box.size[sweep], index);
  }
  return std::nullopt;
}

}  // namespace

Status CheckExactCover(const Box& whole, std::span<const Box> boxes, std::string_view what) {
  const auto fail = [&](const std::string& text) {
    return Status(StatusCode::kInvalidData, std::string(what) + ": " + text);
  };
  int64_t covered = 0;
  std::vector<Box> filled;
  for (const Box& box : boxes) {
    if (box.dims() != whole.dims() || !whole.Contains(box)) {
      return fail("box " + box.ToString() + " lies outside " + whole.ToString());
    }
    if (box.empty()) continue;
    covered += box.elements();
    filled.push_back(box);
  }
  if (whole.dims() == 0) {
    return filled.size() == 1
               ? Status::Ok()
               : fail(std::to_string(filled.size()) + " sources of a scalar, expected 1");
  }
  if (const auto overlap = FindOverlap(filled, whole.dims())) {
    return fail("boxes " + filled[overlap->first].ToString() + " and " +
                filled[overlap->second].ToString() + " overlap");
  }
  if (covered != whole.elements()) {
    return fail(std::to_string(covered) + " of " + std::to_string(whole.elements()) +
                " elements of " + whole.ToString() + " are covered");
  }
  return Status::Ok();
}

}  // namespace keel
