// Tokenizer: text to token ids and back. Torch-free, immutable after construction, thread-safe.
#pragma once

#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "common/enum_names.h"
#include "common/status.h"

namespace keel::model {

class Tokenizer {
 public:
  virtual ~Tokenizer() = default;
  virtual std::vector<int32_t> Encode(std::string_view text) const = 0;
  // Special tokens are left out; bytes that are no UTF-8 come back as they were.
  virtual std::string Decode(std::span<const int32_t> tokens) const = 0;
  virtual int64_t vocab_size() const = 0;
  virtual std::optional<int32_t> bos() const = 0;
  virtual std::optional<int32_t> eos() const = 0;
};

// Where the ids of a run come from.
enum class TokenizerKind {
  kBytes,  // ids 0..255 are the bytes, 256 begins and 257 ends a text, 258 pads; 259 in all
  kIds,    // no tokenizer: rows bring the ids that the model's own one made
};
constexpr auto NamesOf(TokenizerKind) {
  using enum TokenizerKind;
  return EnumNames<TokenizerKind>({{kBytes, "bytes"}, {kIds, "ids"}});
}

// Nothing for kIds.
std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerKind kind);

}  // namespace keel::model
