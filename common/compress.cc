#include "common/compress.h"

#include <algorithm>
#include <cstdint>
#include <cstring>
#include <vector>

namespace keel {
namespace {

// The packed form: the size of it all; then in turns a number of bytes and these bytes, and a
// number of bytes and how far back they are to be copied from. It ends when the size is reached.
// Numbers take 7 bits a byte, the low ones first.
constexpr size_t kShortestCopy = 4;  // three bytes, at least, say where it comes from
constexpr int kSlotBits = 14;

void PutNumber(uint64_t value, std::string* out) {
  for (; value >= 128; value >>= 7) out->push_back(static_cast<char>(value | 128));
  out->push_back(static_cast<char>(value));
}

bool TakeNumber(std::string_view* in, uint64_t* value) {
  *value = 0;
  for (int shift = 0; shift < 63 && !in->empty(); shift += 7) {
    const auto byte = static_cast<unsigned char>(in->front());
    in->remove_prefix(1);
    *value |= uint64_t{byte & 127u} << shift;
    if (byte < 128) return true;
  }
  return false;
}

size_t SlotOf(const char* at) {
  uint32_t word = 0;
  std::memcpy(&word, at, sizeof word);
  return (word * 2654435761u) >> (32 - kSlotBits);
}

}  // namespace

std::string Compress(std::string_view bytes) {
  std::string out;
  PutNumber(bytes.size(), &out);
  // Where four bytes with this hash were last seen, and one more; 0: nowhere.
  std::vector<size_t> seen(size_t{1} << kSlotBits, 0);
  size_t written = 0;
  for (size_t at = 0; at + kShortestCopy <= bytes.size();) {
    size_t& slot = seen[SlotOf(bytes.data() + at)];
    const size_t from = slot;
    slot = at + 1;
    size_t length = 0;
    if (from > 0) {
      while (at + length < bytes.size() && bytes[from - 1 + length] == bytes[at + length]) ++length;
    }
    if (length < kShortestCopy) {
      ++at;
      continue;
    }
    PutNumber(at - written, &out);
    out.append(bytes.substr(written, at - written));
    PutNumber(length, &out);
    PutNumber(at + 1 - from, &out);
    const size_t end = at + length;
    for (++at; at < end && at + kShortestCopy <= bytes.size(); ++at)
      seen[SlotOf(bytes.data() + at)] = at + 1;
    at = written = end;
  }
  if (written < bytes.size()) {
    PutNumber(bytes.size() - written, &out);
    out.append(bytes.substr(written));
  }
  return out;
}

Result<std::string> Decompress(std::string_view packed, size_t limit) {
  const Status malformed(StatusCode::kInvalidData, "malformed compressed bytes");
  uint64_t size = 0;
  if (!TakeNumber(&packed, &size) || size > limit) return malformed;
  std::string out;
  while (out.size() < size) {
    uint64_t count = 0, length = 0, back = 0;
    if (!TakeNumber(&packed, &count) || count > packed.size() || count > size - out.size())
      return malformed;
    out.append(packed.substr(0, count));
    packed.remove_prefix(count);
    if (out.size() == size) break;
    if (!TakeNumber(&packed, &length) || !TakeNumber(&packed, &back) || length == 0 ||
        length > size - out.size() || back == 0 || back > out.size())
      return malformed;
    // Byte by byte: a copy may reach into itself.
    for (size_t from = out.size() - back; length > 0; --length) out.push_back(out[from++]);
  }
  if (!packed.empty()) return malformed;
  return out;
}

}  // namespace keel
