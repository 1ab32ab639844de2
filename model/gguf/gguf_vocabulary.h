// GgufVocabulary: the tokens of a GGUF file, checked, with their kinds and merges.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "common/status.h"
#include "model/gguf/gguf_file.h"
#include "model/tokenizer/files/token_list.h"

namespace keel::model {

// Merges of a file without them: those that the scores order.
struct GgufVocabulary : TokenList {
  std::vector<float> scores;  // beside tokens, or empty
  std::unordered_map<std::string_view, int64_t> ids;

  GgufVocabulary() = default;
  GgufVocabulary(GgufVocabulary&&) = default;  // the views of `ids` stay valid
  GgufVocabulary& operator=(GgufVocabulary&&) = default;
};

// `by_scores`: SentencePiece, with scores and without merges.
Result<GgufVocabulary> ReadGgufVocabulary(const GgufMetadata& metadata, bool by_scores);

}  // namespace keel::model
