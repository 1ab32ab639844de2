// Bytes for peers and for files: little-endian integers and length-prefixed text, with a reader
// that never looks past the end.
#pragma once

#include <bit>
#include <cstdint>
#include <cstring>
#include <string>
#include <string_view>
#include <type_traits>
#include <utility>

namespace keel::checkpoint {

static_assert(std::endian::native == std::endian::little, "the formats are read in place");

class WireWriter {
 public:
  void U64(uint64_t value) { Pod(value); }
  void I64(int64_t value) { Pod(value); }
  void U32(uint32_t value) { Pod(value); }
  void Text(std::string_view text) {
    U64(text.size());
    Raw(text);
  }
  void Raw(std::string_view bytes) { bytes_.append(bytes); }
  template <typename T>
  void Pod(const T& value) {
    static_assert(std::is_trivially_copyable_v<T>);
    char raw[sizeof(T)];
    std::memcpy(raw, &value, sizeof(T));
    bytes_.append(raw, sizeof(T));
  }
  // So many bytes in all are to come.
  void Reserve(size_t bytes) { bytes_.reserve(bytes); }
  const std::string& bytes() const { return bytes_; }
  std::string Take() && { return std::move(bytes_); }

 private:
  std::string bytes_;
};

// Every call returns false, and leaves the target alone, when the bytes do not suffice. Owns
// nothing.
class WireReader {
 public:
  explicit WireReader(std::string_view bytes) : rest_(bytes) {}
  bool U64(uint64_t* value) { return Pod(value); }
  bool I64(int64_t* value) { return Pod(value); }
  bool U32(uint32_t* value) { return Pod(value); }
  bool Text(std::string* text) {
    std::string_view view;
    if (!View(&view)) return false;
    text->assign(view);
    return true;
  }
  // The same without a copy: valid as long as the bytes that are read.
  bool View(std::string_view* text) {
    uint64_t size = 0;
    WireReader saved = *this;
    if (!U64(&size) || size > rest_.size()) {
      *this = saved;
      return false;
    }
    *text = rest_.substr(0, size);
    rest_.remove_prefix(size);
    return true;
  }
  template <typename T>
  bool Pod(T* value) {
    static_assert(std::is_trivially_copyable_v<T>);
    if (rest_.size() < sizeof(T)) return false;
    std::memcpy(value, rest_.data(), sizeof(T));
    rest_.remove_prefix(sizeof(T));
    return true;
  }
  bool AtEnd() const { return rest_.empty(); }
  size_t remaining() const { return rest_.size(); }

 private:
  std::string_view rest_;
};

}  // namespace keel::checkpoint
