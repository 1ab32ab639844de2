#include "model/tokenizer/tokenizer_kind.h"

#include "model/tokenizer/byte_tokenizer.h"

namespace keel::model {

std::unique_ptr<Tokenizer> MakeTokenizer(TokenizerKind kind) {
  if (kind == TokenizerKind::kBytes) return MakeByteTokenizer();
  return nullptr;
}

}  // namespace keel::model
