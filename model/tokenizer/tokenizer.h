// Tokenizer: text to token ids and back. Torch-free, immutable after construction, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/byte_range.h"
#include "common/hash.h"
#include "common/status.h"

namespace keel::model {

struct EncodeOptions {
  // The ids that the tokenizer's own template puts around a text, such as the one that begins it.
  // Special tokens that are written out in the text become their ids either way.
  bool add_special_tokens = false;
  // Whether offsets leave out the white space at a token's ends where the tokenizer's file says so.
  // Else a token of spaces is where it stands.
  bool trims_offsets = true;
};

struct DecodeOptions {
  bool skip_special_tokens = true;
};

struct Encoding {
  std::vector<int32_t> ids;
  // One per id, in bytes of the text as it was given. Tokens that are pieces of one character each
  // name the whole character; what the tokenizer added itself is an empty range.
  std::vector<ByteRange> offsets;
};

// What is known of a tokenizer beside its tokens.
struct TokenizerFacts {
  int64_t vocab_size = 0;  // the highest id + 1, added tokens included
  std::optional<int32_t> bos;
  std::optional<int32_t> eos;
  std::optional<int32_t> pad;
  Digest128 digest;  // over the bytes of the files that it was read from
};

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  Tokenizer(const Tokenizer&) = delete;
  Tokenizer& operator=(const Tokenizer&) = delete;

  // Both throw Error(kInvalidData) for a text that the tokenizer's pattern cannot split within its
  // limit of steps: no text is split in another way than the model was trained with. Bytes that are
  // not UTF-8 are read as U+FFFD, except by a tokenizer of bytes.
  std::vector<int32_t> Encode(std::string_view text, const EncodeOptions& options = {}) const {
    return DoEncode(text, options, nullptr);
  }
  Encoding EncodeWithOffsets(std::string_view text, const EncodeOptions& options = {}) const {
    Encoding encoding;
    encoding.ids = DoEncode(text, options, &encoding.offsets);
    return encoding;
  }
  // Ids that there are none of are left out. Bytes that are not UTF-8 become U+FFFD, except from a
  // tokenizer of bytes: from it they come back as they were.
  std::string Decode(std::span<const int32_t> ids, const DecodeOptions& options = {}) const;

  // What is to stand before Decode(ids) where these go on behind `before`: the space of their first
  // word, if `before` has a text.
  std::string LeadOf(std::span<const int32_t> before, std::span<const int32_t> ids) const;

  // `text` as the vocabulary spells a token: "Ġthe".
  virtual std::optional<int32_t> IdOf(std::string_view text) const = 0;
  // "" for an id that there is none of. The view lives as long as the tokenizer.
  virtual std::string_view TokenOf(int32_t id) const = 0;
  virtual bool IsSpecial(int32_t id) const = 0;
  // What it adds to a text in whose midst it stands: of a part of a character its bytes, for which
  // Decode has U+FFFD. "" for an id that there is none of.
  virtual std::string BytesOf(int32_t id) const;

  int64_t vocab_size() const { return facts_.vocab_size; }
  std::optional<int32_t> bos() const { return facts_.bos; }
  std::optional<int32_t> eos() const { return facts_.eos; }
  std::optional<int32_t> pad() const { return facts_.pad; }
  const Digest128& digest() const { return facts_.digest; }

  // The state of one text that is being decoded id by id; see StreamDecoder.
  class DecodeState {
   public:
    virtual ~DecodeState() = default;
    // Appends to `text` what is certain after this id, or after the last one.
    virtual void Push(int32_t id, std::string* text) = 0;
    virtual void Finish(std::string* text) = 0;
  };
  // Must not outlive the tokenizer.
  virtual std::unique_ptr<DecodeState> StartDecoding(const DecodeOptions& options) const = 0;

 protected:
  explicit Tokenizer(TokenizerFacts facts) : facts_(facts) {}
  // Changes what the constructor was told, before anyone else has the tokenizer.
  TokenizerFacts& facts() { return facts_; }

 private:
  // `offsets` may be null.
  virtual std::vector<int32_t> DoEncode(std::string_view text, const EncodeOptions& options,
                                        std::vector<ByteRange>* offsets) const = 0;

  TokenizerFacts facts_;
};

// Texts in order, on up to `threads` threads. Throws what Encode throws, for the first such text.
std::vector<std::vector<int32_t>> EncodeBatch(const Tokenizer& tokenizer,
                                              std::span<const std::string_view> texts, int threads,
                                              const EncodeOptions& options = {});

}  // namespace keel::model
