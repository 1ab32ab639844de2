// PipelineTokenizer: the parts of a tokenizer put together: added tokens, normalizer,
// pre-tokenizers, byte-pair encoding, post-processor, decoders. All readers of tokenizer files make
// one of these.
#pragma once

#include <memory>
#include <string_view>
#include <vector>

#include "model/tokenizer/pipeline/added_tokens.h"
#include "model/tokenizer/pipeline/bpe.h"
#include "model/tokenizer/pipeline/decoder.h"
#include "model/tokenizer/pipeline/normalizer.h"
#include "model/tokenizer/pipeline/post_processor.h"
#include "model/tokenizer/pipeline/pre_tokenizer.h"
#include "model/tokenizer/tokenizer.h"

namespace keel::model {

struct PipelineParts {
  std::vector<AddedToken> added;
  std::unique_ptr<Normalizer> normalizer;  // may be null
  PreTokenizers pre_tokenizers;
  std::unique_ptr<Bpe> bpe;
  PostProcessor post_processor;
  std::vector<std::unique_ptr<Decoder>> decoders;
  bool spaces =
      true;  // between decoded tokens: where the file has no decoder, not even one of none
  // By the vocabulary's and the added tokens' spelling; nothing when there is no such token.
  std::optional<int32_t> bos, eos, pad;
  Digest128 digest;
};

// kInvalidData, with `where` first, for parts that do not fit together: an added token that has
// another id than the vocabulary gives it, an id in a template that there is no token for.
Result<std::unique_ptr<Tokenizer>> MakePipelineTokenizer(PipelineParts parts,
                                                         std::string_view where);

}  // namespace keel::model
