// AlignedText: a text that is being rewritten, and for each byte of it the range of the original
// that it came from. A value type; keeps no reference to the original.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "common/byte_range.h"

namespace keel::model {

// [begin, end) in the bytes of a text that is at hand.
struct Span {
  size_t begin = 0;
  size_t end = 0;
  size_t size() const { return end - begin; }
  std::string_view Of(std::string_view text) const { return text.substr(begin, end - begin); }
  friend bool operator==(const Span&, const Span&) = default;
};

class AlignedText {
 public:
  // `text` is well-formed UTF-8 and stands at byte `base` of the original. Without `track` nobody
  // will ask for origins, and none are kept.
  AlignedText(std::string_view text, int64_t base, bool track);

  const std::string& text() const { return text_; }
  // Whether the byte `at`, and all before it, came from the original's first character.
  bool IsOfFirst(size_t at) const { return at < of_first_; }

  // A part of it as a text of its own.
  AlignedText Slice(Span span) const;

  // The range of the original that the bytes of `span` came from: whole characters.
  ByteRange OriginOf(Span span) const;

  // Writes the text anew, from its start to its end:
  //   Rewrite rewrite(&text); rewrite.Keep(...); rewrite.Put(...); rewrite.Finish();
  class Rewrite {
   public:
    explicit Rewrite(AlignedText* text);
    void Keep(Span span);
    // `bytes` with the origin of the byte `at` of the text as it was.
    void Put(std::string_view bytes, size_t at);
    // `bytes` before everything, with an empty origin at the start.
    void PutBefore(std::string_view bytes);
    // Bytes written so far.
    size_t size() const { return bytes_.size(); }
    void Finish();

   private:
    // Of bytes that are about to be written: the first `count` came from the original's first
    // character.
    void CountFirst(size_t count);

    AlignedText* text_;
    std::string bytes_;
    std::vector<ByteRange> origins_;
    size_t of_first_ = 0;
  };

 private:
  // Of one byte of the text.
  ByteRange OriginAt(size_t at) const;

  std::string text_;
  int64_t base_;
  bool track_;
  size_t of_first_ = 0;  // bytes at its start that came from the original's first character
  bool rewritten_ = false;
  std::vector<ByteRange> origins_;  // one a byte, once the text was rewritten
};

}  // namespace keel::model
