#include "trainer/data/record_bytes.h"

#include <cstring>

namespace keel::trainer {

void RecordWriter::Append(std::span<const std::byte> bytes) {
  bytes_->insert(bytes_->end(), bytes.begin(), bytes.end());
}

void RecordWriter::Put(int64_t value) { Append(std::as_bytes(std::span(&value, 1))); }

void RecordWriter::PutIds(std::span<const int32_t> ids) {
  Put(std::ssize(ids));
  Append(std::as_bytes(ids));
}

void RecordWriter::PutText(std::string_view text) {
  Put(std::ssize(text));
  Append(std::as_bytes(std::span(text)));
}

bool RecordReader::Take(int64_t* value) {
  if (left_.size() < sizeof(*value)) return false;
  std::memcpy(value, left_.data(), sizeof(*value));
  left_ = left_.subspan(sizeof(*value));
  return true;
}

bool RecordReader::TakeList(size_t size, std::span<const std::byte>* list) {
  int64_t count = 0;
  if (!Take(&count) || count < 0 || static_cast<uint64_t>(count) > left_.size() / size)
    return false;
  *list = left_.first(static_cast<size_t>(count) * size);
  left_ = left_.subspan(list->size());
  return true;
}

bool RecordReader::TakeIds(std::vector<int32_t>* ids) {
  std::span<const std::byte> list;
  if (!TakeList(sizeof(int32_t), &list)) return false;
  ids->resize(list.size() / sizeof(int32_t));
  if (!list.empty()) std::memcpy(ids->data(), list.data(), list.size());
  return true;
}

bool RecordReader::TakeText(std::string_view* text) {
  std::span<const std::byte> list;
  if (!TakeList(1, &list)) return false;
  *text = {reinterpret_cast<const char*>(list.data()), list.size()};
  return true;
}

}  // namespace keel::trainer
