#include "trainer/metrics/event_encoding.h"

#include <algorithm>
#include <array>
#include <bit>
#include <cmath>
#include <cstring>

namespace keel::trainer {

namespace {

constexpr size_t kBuckets = 30;
constexpr uint64_t kStringType = 7;   // DataType DT_STRING
constexpr uint64_t kTensorClass = 2;  // DataClass DATA_CLASS_TENSOR
constexpr uint64_t kSessionStart = 1;

static_assert(std::endian::native == std::endian::little);

constexpr std::array<uint32_t, 256> MakeCrcTable() {
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) crc = (crc >> 1) ^ (0x82f63b78U & (0U - (crc & 1U)));
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = MakeCrcTable();

// The fields of a message, added one after the other.
class Message {
 public:
  void Number(int field, uint64_t value) {
    Key(field, 0);
    Varint(value);
  }
  void Double(int field, double value) {
    Key(field, 1);
    Raw(value);
  }
  void Float(int field, float value) {
    Key(field, 5);
    Raw(value);
  }
  void Bytes(int field, std::string_view value) {
    Key(field, 2);
    Varint(value.size());
    bytes_ += value;
  }
  void Doubles(int field, std::span<const double> values) {  // packed
    Key(field, 2);
    Varint(values.size() * sizeof(double));
    for (const double value : values) Raw(value);
  }
  const std::string& bytes() const { return bytes_; }

 private:
  void Key(int field, unsigned type) { Varint(static_cast<uint64_t>(field) << 3 | type); }
  void Varint(uint64_t value) {
    for (; value >= 0x80; value >>= 7) bytes_ += static_cast<char>(value | 0x80);
    bytes_ += static_cast<char>(value);
  }
  template <typename T>
  void Raw(T value) {
    std::array<char, sizeof(T)> raw{};
    std::memcpy(raw.data(), &value, sizeof(T));
    bytes_.append(raw.data(), raw.size());
  }
  std::string bytes_;
};

Message EventAt(double wall_time, int64_t step) {
  Message event;
  event.Double(1, wall_time);
  event.Number(2, static_cast<uint64_t>(step));
  return event;
}

}  // namespace

uint32_t Crc32c(std::string_view bytes) {
  uint32_t crc = ~0U;
  for (const char byte : bytes)
    crc = kCrcTable[(crc ^ static_cast<unsigned char>(byte)) & 0xff] ^ (crc >> 8);
  return ~crc;
}

uint32_t MaskedCrc32c(std::string_view bytes) { return std::rotr(Crc32c(bytes), 15) + 0xa282ead8U; }

std::string EventRecord(std::string_view event) {
  std::string record;
  record.reserve(event.size() + 16);
  const auto add = [&](auto value) {
    std::array<char, sizeof value> raw{};
    std::memcpy(raw.data(), &value, sizeof value);
    record.append(raw.data(), raw.size());
  };
  add(static_cast<uint64_t>(event.size()));
  add(MaskedCrc32c(record));
  record += event;
  add(MaskedCrc32c(event));
  return record;
}

std::string FileVersionEvent(double wall_time) {
  Message event;
  event.Double(1, wall_time);
  event.Bytes(3, "brain.Event:2");
  return event.bytes();
}

std::string SessionStartEvent(double wall_time, int64_t step) {
  Message session;
  session.Number(1, kSessionStart);
  Message event = EventAt(wall_time, step);
  event.Bytes(7, session.bytes());
  return event.bytes();
}

std::string ScalarsEvent(double wall_time, int64_t step,
                         std::span<const std::pair<std::string, double>> scalars) {
  Message summary;
  for (const auto& [name, value] : scalars) {
    Message one;
    one.Bytes(1, name);
    one.Float(2, static_cast<float>(value));
    summary.Bytes(1, one.bytes());
  }
  Message event = EventAt(wall_time, step);
  event.Bytes(5, summary.bytes());
  return event.bytes();
}

std::string HistogramEvent(double wall_time, int64_t step, std::string_view name,
                           std::span<const double> values) {
  std::vector<double> finite;
  std::copy_if(values.begin(), values.end(), std::back_inserter(finite),
               [](double value) { return std::isfinite(value); });
  const auto [least, greatest] = std::minmax_element(finite.begin(), finite.end());
  const double low = finite.empty() ? 0 : *least;
  const double high = finite.empty() ? 0 : *greatest;
  // A bucket holds what is below its limit and not below the one before; the last has its own.
  const size_t buckets = high > low ? kBuckets : 1;
  std::vector<double> limits, counts(buckets, 0);
  const double width = (high - low) / static_cast<double>(buckets);
  for (size_t i = 1; i < buckets; ++i) limits.push_back(low + width * static_cast<double>(i));
  limits.push_back(high);
  double sum = 0, squares = 0;
  for (const double value : finite) {
    const auto at = std::upper_bound(limits.begin(), limits.end() - 1, value) - limits.begin();
    counts[static_cast<size_t>(at)] += 1;
    sum += value;
    squares += value * value;
  }
  Message histogram;
  histogram.Double(1, low);
  histogram.Double(2, high);
  histogram.Double(3, static_cast<double>(finite.size()));
  histogram.Double(4, sum);
  histogram.Double(5, squares);
  histogram.Doubles(6, limits);
  histogram.Doubles(7, counts);
  Message value;
  value.Bytes(1, name);
  value.Bytes(5, histogram.bytes());
  Message summary;
  summary.Bytes(1, value.bytes());
  Message event = EventAt(wall_time, step);
  event.Bytes(5, summary.bytes());
  return event.bytes();
}

std::string TextEvent(double wall_time, int64_t step, std::string_view name,
                      std::string_view text) {
  Message tensor;
  tensor.Number(1, kStringType);
  tensor.Bytes(2, "");  // TensorShapeProto of a scalar
  tensor.Bytes(8, text);
  Message plugin;
  plugin.Bytes(1, "text");
  Message metadata;
  metadata.Bytes(1, plugin.bytes());
  metadata.Number(4, kTensorClass);
  Message value;
  value.Bytes(1, name);
  value.Bytes(8, tensor.bytes());
  value.Bytes(9, metadata.bytes());
  Message summary;
  summary.Bytes(1, value.bytes());
  Message event = EventAt(wall_time, step);
  event.Bytes(5, summary.bytes());
  return event.bytes();
}

}  // namespace keel::trainer
