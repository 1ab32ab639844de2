// Bytes for peers and for files: little-endian numbers, texts behind their size, lists; with a
// reader that never looks past the end.
//
// What a protocol asks besides (limits, versions, digests) is that protocol's own. Owns no bytes
// but those that are written.
#pragma once

#include <bit>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <span>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>
#include <vector>

#include "common/status.h"

namespace keel {

static_assert(std::endian::native == std::endian::little, "the formats are read in place");

// What stands in the bytes as it lies in memory.
template <typename T>
concept WirePod = std::is_trivially_copyable_v<T> && !std::is_pointer_v<T> &&
                  !std::is_convertible_v<T, std::string_view>;

class WireWriter {
 public:
  template <WirePod T>
  WireWriter& Pod(const T& value) {
    bytes_.append(reinterpret_cast<const char*>(&value), sizeof(T));
    return *this;
  }
  WireWriter& U64(uint64_t value) { return Pod(value); }
  WireWriter& I64(int64_t value) { return Pod(value); }
  WireWriter& U32(uint32_t value) { return Pod(value); }
  // How many of something follow. An Error (kInternal) where a Size does not hold it.
  template <typename Size = uint64_t>
  WireWriter& Count(size_t count) {
    if (!std::in_range<Size>(count))
      throw Error(StatusCode::kInternal, std::to_string(count) + " are more than a format holds");
    return Pod(static_cast<Size>(count));
  }
  // Behind its size in bytes.
  template <typename Size = uint64_t>
  WireWriter& Text(std::string_view text) {
    return Count<Size>(text.size()).Raw(text);
  }
  // Behind their number.
  WireWriter& Texts(const std::vector<std::string>& texts) {
    Count(texts.size());
    for (const std::string& text : texts) Text(text);
    return *this;
  }
  WireWriter& Raw(std::string_view bytes) {
    bytes_.append(bytes);
    return *this;
  }
  // The elements of a vector, span or array: alone, or behind the number of their bytes.
  template <typename Range>
  WireWriter& Pods(const Range& values) {
    return Raw(BytesOf(std::span(values)));
  }
  template <typename Range>
  WireWriter& List(const Range& values) {
    return Text(BytesOf(std::span(values)));
  }
  // So many bytes in all are to come.
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  void Clear() { bytes_.clear(); }
  const std::string& bytes() const { return bytes_; }
  std::string Take() && { return std::move(bytes_); }

 private:
  template <WirePod T, size_t N>
  static std::string_view BytesOf(std::span<T, N> values) {
    return {reinterpret_cast<const char*>(values.data()), values.size_bytes()};
  }

  std::string bytes_;
};

// Takes in the order in which it was written. Every call returns false, and leaves itself and the
// target alone, when the bytes do not suffice; no memory is taken for what is not there. Owns
// nothing.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}
  explicit WireReader(std::span<const std::byte> bytes)
      : rest_(reinterpret_cast<const char*>(bytes.data()), bytes.size()) {}

  template <WirePod T>
  bool Pod(T* value) {
    return Pods(std::span(value, 1));
  }
  bool U64(uint64_t* value) { return Pod(value); }
  bool I64(int64_t* value) { return Pod(value); }
  bool U32(uint32_t* value) { return Pod(value); }
  template <typename Size = uint64_t>
  bool Text(std::string* text) {
    std::string_view view;
    if (!View<Size>(&view)) return false;
    text->assign(view);
    return true;
  }
  // The same without a copy: valid as long as the bytes that are read.
  template <typename Size = uint64_t>
  bool View(std::string_view* text) {
    WireReader ahead = *this;
    Size size = 0;
    if (!ahead.Pod(&size) || !ahead.Raw(size, text)) return false;
    *this = ahead;
    return true;
  }
  // So many bytes.
  bool Raw(uint64_t size, std::string_view* bytes) {
    if (rest_.size() < size) return false;
    *bytes = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  // Elements alone: as many as there are in `values`, or `count`.
  template <WirePod T, size_t N>
  bool Pods(std::span<T, N> values) {
    if (rest_.size() < values.size_bytes()) return false;
    if (!values.empty()) std::memcpy(values.data(), rest_.data(), values.size_bytes());
    rest_.remove_prefix(values.size_bytes());
    return true;
  }
  template <WirePod T>
  bool Pods(uint64_t count, std::vector<T>* values) {
    if (rest_.size() / sizeof(T) < count) return false;
    values->resize(count);
    return Pods(std::span(*values));
  }
  // Elements behind the number of their bytes.
  template <WirePod T>
  bool List(std::vector<T>* values) {
    WireReader ahead = *this;
    std::string_view bytes;
    if (!ahead.View(&bytes) || bytes.size() % sizeof(T) != 0) return false;
    *this = ahead;
    return WireReader(bytes).Pods(bytes.size() / sizeof(T), values);
  }
  bool AtEnd() const { return rest_.empty(); }
  size_t remaining() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

}  // namespace keel
