// TokenizerKind: where the ids of a run come from, as configurations name it.
#pragma once

#include <memory>

#include "common/enum_names.h"
#include "model/tokenizer/tokenizer.h"

namespace keel::model {

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
