// The alphabet of byte-level vocabularies (GPT-2): every byte has a printable character, so that
// tokens of any bytes are text: a space is written "Ġ".
#pragma once

#include <array>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace keel::model {

class ByteAlphabet {
 public:
  ByteAlphabet();

  std::string_view CharacterOf(unsigned char byte) const { return characters_[byte]; }
  std::optional<unsigned char> ByteOf(uint32_t code_point) const;
  // Appends the characters of all bytes.
  void Spell(std::string_view bytes, std::string* text) const;
  // Appends the bytes that `token` spells; its own when one of its characters stands for none.
  void Read(std::string_view token, std::string* bytes) const;

 private:
  std::array<std::string, 256> characters_;
  std::array<int16_t, 512> bytes_;  // by code point; -1 for none
};

}  // namespace keel::model
