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

namespace keel::model {

// As numbered in files.
enum class GgufTokenKind : int64_t {
  kNormal = 1,
  kUnknown = 2,
  kControl = 3,
  kUserDefined = 4,
  kUnused = 5,
  kByte = 6,
};

struct GgufVocabulary {
  std::vector<std::string> tokens;  // by id; no two are equal
  std::vector<GgufTokenKind> kinds;
  std::vector<float> scores;  // beside tokens, or empty
  std::unordered_map<std::string_view, int64_t> ids;
  // The first is done first. Of a file without merges: those that the scores order.
  std::vector<std::pair<std::string, std::string>> merges;

  GgufVocabulary() = default;
  GgufVocabulary(GgufVocabulary&&) = default;  // the views of `ids` stay valid
  GgufVocabulary& operator=(GgufVocabulary&&) = default;
};

// `by_scores`: SentencePiece, with scores and without merges.
Result<GgufVocabulary> ReadGgufVocabulary(const GgufMetadata& metadata, bool by_scores);

}  // namespace keel::model
