// Decoders: tokens back to text, one token at a time. The steps of a tokenizer stand in a chain:
// each gets tokens from the one before it, and hands on what is certain. What comes out in the end
// is, all together, what `tokenizers` makes of all tokens at once.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "model/tokenizer/pipeline/component.h"
#include "model/tokenizer/pipeline/pattern.h"

namespace keel::model {

// Gets the tokens of one text. Not thread-safe.
class DecodeStep {
 public:
  virtual ~DecodeStep() = default;
  // A token, or with `last` false a part of one: the next call goes on with it.
  virtual void Push(std::string_view token, bool last) = 0;
  virtual void Finish() = 0;
};

// Makes one step, which hands on to `next`. Immutable, thread-safe; outlives its steps.
class Decoder {
 public:
  virtual ~Decoder() = default;
  virtual std::unique_ptr<DecodeStep> Start(std::unique_ptr<DecodeStep> next) const = 0;
};

// The byte that a token such as <0xE2> stands for where there is a ByteFallback.
std::optional<char> FallbackByte(std::string_view token);

// The steps in order: ByteLevel, Replace, ByteFallback, Fuse, Strip, Metaspace, Sequence; others
// are refused by name. Throws Error(kInvalidData).
std::vector<std::unique_ptr<Decoder>> MakeDecoders(const Component& component);

}  // namespace keel::model
