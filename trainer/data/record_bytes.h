// The parts of a record (row_records.h) as bytes, little-endian: numbers of 8 bytes, ids of 4 and
// texts, each list behind the number of its elements. Torch-free.
#pragma once

#include <cstddef>
#include <cstdint>
#include <span>
#include <string_view>
#include <vector>

namespace keel::trainer {

// Appends to `bytes`, which must outlive it.
class RecordWriter {
 public:
  explicit RecordWriter(std::vector<std::byte>* bytes) : bytes_(bytes) {}
  void Put(int64_t value);
  void PutIds(std::span<const int32_t> ids);
  void PutText(std::string_view text);

 private:
  void Append(std::span<const std::byte> bytes);

  std::vector<std::byte>* bytes_;
};

// Takes in the order in which it was put. Each says whether what it wants was there. Texts are
// views of the bytes.
class RecordReader {
 public:
  explicit RecordReader(std::span<const std::byte> bytes) : left_(bytes) {}
  bool Take(int64_t* value);
  bool TakeIds(std::vector<int32_t>* ids);
  bool TakeText(std::string_view* text);
  bool done() const { return left_.empty(); }

 private:
  // The bytes of a list of elements of `size` bytes, behind their number.
  bool TakeList(size_t size, std::span<const std::byte>* list);

  std::span<const std::byte> left_;
};

}  // namespace keel::trainer
