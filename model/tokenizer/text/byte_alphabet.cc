#include "model/tokenizer/text/byte_alphabet.h"

#include "model/tokenizer/text/utf8.h"

namespace keel::model {

// A byte that is a printable Latin-1 character stands for itself; the others, in their order, take
// the characters from U+0100 on.
ByteAlphabet::ByteAlphabet() {
  bytes_.fill(-1);
  uint32_t next = 0x100;
  for (uint32_t byte = 0; byte < 256; ++byte) {
    const bool printable = (byte >= '!' && byte <= '~') || (byte >= 0xA1 && byte != 0xAD);
    const uint32_t code_point = printable ? byte : next++;
    AppendUtf8(code_point, &characters_[byte]);
    bytes_[code_point] = static_cast<int16_t>(byte);
  }
}

std::optional<unsigned char> ByteAlphabet::ByteOf(uint32_t code_point) const {
  if (code_point >= bytes_.size() || bytes_[code_point] < 0) return std::nullopt;
  return static_cast<unsigned char>(bytes_[code_point]);
}

void ByteAlphabet::Spell(std::string_view bytes, std::string* text) const {
  for (const char byte : bytes) *text += characters_[static_cast<unsigned char>(byte)];
}

void ByteAlphabet::Read(std::string_view token, std::string* bytes) const {
  const size_t before = bytes->size();
  for (size_t at = 0; at < token.size();) {
    const CodePoint c = CodePointAt(token, at);
    const auto byte = ByteOf(c.value);
    if (!byte) {
      bytes->resize(before);
      *bytes += token;
      return;
    }
    *bytes += static_cast<char>(*byte);
    at += c.length;
  }
}

}  // namespace keel::model
