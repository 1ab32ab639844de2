// Hugging Face's tokenizer.json, the whole of it: every part is understood or refused by name.
#pragma once

#include <memory>
#include <optional>
#include <string>
#include <string_view>

#include "common/json.h"
#include "common/status.h"
#include "model/tokenizer/pipeline/further_tokens.h"
#include "model/tokenizer/pipeline/pipeline.h"
#include "model/tokenizer/tokenizer.h"

namespace keel::model {

// The tokens that begin, end and pad a text; tokenizer.json itself does not name them.
struct SpecialNames {
  std::optional<std::string> bos;
  std::optional<std::string> eos;
  std::optional<std::string> pad;
};

// A file of another kind, told as a tokenizer.json.
struct TokenizerDocument {
  Json json;
  SpecialNames names;
};

// `where` stands first in messages: the file's path. kInvalidData for what is no such file, names a
// part that Keel does not have, or contradicts itself or `further`; for a name that is no token,
// too. The digest is over the bytes, the names and the further tokens. "truncation" and "padding"
// are not applied: they are up to who makes batches.
Result<std::unique_ptr<Tokenizer>> ParseTokenizerJson(std::string_view bytes,
                                                      std::string_view where,
                                                      const SpecialNames& names = {},
                                                      const FurtherTokens& further = {});

// The same in two steps, for who has to know before the second what the file says.
struct TokenizerFile {
  PipelineParts parts;
  std::optional<std::string> pad_token;  // of "padding"
};
Result<TokenizerFile> ReadTokenizerJson(std::string_view bytes, std::string_view where);
Result<std::unique_ptr<Tokenizer>> MakeTokenizer(TokenizerFile file, std::string_view bytes,
                                                 std::string_view where, const SpecialNames& names,
                                                 const FurtherTokens& further);

}  // namespace keel::model
