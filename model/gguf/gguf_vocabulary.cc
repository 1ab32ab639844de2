#include "model/gguf/gguf_vocabulary.h"

#include <fmt/format.h>

#include <cmath>

#include "common/text.h"

namespace keel::model {

namespace {

constexpr const char* kTokens = "tokenizer.ggml.tokens";
constexpr const char* kKinds = "tokenizer.ggml.token_type";
constexpr const char* kMerges = "tokenizer.ggml.merges";
constexpr const char* kScores = "tokenizer.ggml.scores";
constexpr int64_t kMostTokens = 1 << 24;
// All splits of a token are tried; SentencePiece itself makes none of more than some 200 bytes.
constexpr size_t kLongestSplit = 512;

Status ReadTokens(const GgufMetadata& metadata, GgufVocabulary* out) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<std::string>* const tokens, metadata.Strings(kTokens));
  if (tokens == nullptr || tokens->empty())
    return metadata.Wrong(kTokens, "is missing: the file has no vocabulary");
  if (std::ssize(*tokens) > kMostTokens) {
    return metadata.Wrong(kTokens,
                          fmt::format("{} tokens, at most {}", tokens->size(), kMostTokens));
  }
  out->tokens = *tokens;
  out->ids.reserve(tokens->size());
  for (size_t id = 0; id < out->tokens.size(); ++id) {
    const std::string& token = out->tokens[id];
    if (FindNotUtf8(token) != std::string::npos) {
      return metadata.Wrong(kTokens,
                            fmt::format("token {} is not UTF-8: \"{}\"", id, Printable(token)));
    }
    const auto [there, added] = out->ids.emplace(token, static_cast<int64_t>(id));
    if (added) continue;
    return metadata.Wrong(kTokens, fmt::format("tokens {} and {} are both \"{}\"", there->second,
                                               id, Printable(token)));
  }
  return Status::Ok();
}

Status ReadKinds(const GgufMetadata& metadata, GgufVocabulary* out) {
  KEEL_ASSIGN_OR_RETURN(const GgufValue* const kinds, metadata.Integers(kKinds));
  if (kinds == nullptr) {
    out->kinds.assign(out->tokens.size(), TokenKind::kNormal);
    return Status::Ok();
  }
  if (kinds->count != std::ssize(out->tokens)) {
    return metadata.Wrong(kKinds,
                          fmt::format("{} kinds of {} tokens", kinds->count, out->tokens.size()));
  }
  for (int64_t id = 0; id < kinds->count; ++id) {
    const int64_t kind = kinds->Integer(id).value_or(0);
    if (kind < 1 || kind > 6)
      return metadata.Wrong(kKinds,
                            fmt::format("token {} is of kind {}, expected 1 to 6", id, kind));
    out->kinds.push_back(static_cast<TokenKind>(kind));
  }
  return Status::Ok();
}

// "Ġt he": two tokens of the vocabulary that give a third.
Status ReadMerges(const GgufMetadata& metadata, GgufVocabulary* out) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<std::string>* const merges, metadata.Strings(kMerges));
  if (merges == nullptr) return metadata.Wrong(kMerges, "is missing, expected an array of strings");
  out->merges.reserve(merges->size());
  for (size_t i = 0; i < merges->size(); ++i) {
    const std::string& merge = (*merges)[i];
    // No token begins with a space: one that is a token itself would stand first.
    const size_t space = merge.find(' ', 1);
    const bool two = space != std::string::npos && space + 1 < merge.size();
    std::string left = two ? merge.substr(0, space) : "";
    std::string right = two ? merge.substr(space + 1) : "";
    if (!two || !out->ids.contains(left) || !out->ids.contains(right) ||
        !out->ids.contains(left + right)) {
      return metadata.Wrong(
          kMerges, fmt::format("merge {}, \"{}\", is not of two tokens that give a third", i,
                               Printable(merge)));
    }
    out->merges.emplace_back(std::move(left), std::move(right));
  }
  return Status::Ok();
}

Status ReadScores(const GgufMetadata& metadata, GgufVocabulary* out) {
  KEEL_ASSIGN_OR_RETURN(const GgufValue* const scores, metadata.Floats(kScores));
  if (scores == nullptr) return metadata.Wrong(kScores, "is missing, expected an array of floats");
  if (scores->count != std::ssize(out->tokens)) {
    return metadata.Wrong(kScores,
                          fmt::format("{} scores of {} tokens", scores->count, out->tokens.size()));
  }
  for (int64_t id = 0; id < scores->count; ++id) {
    out->scores.push_back(static_cast<float>(scores->Number(id)));
    if (!std::isfinite(out->scores.back()))
      return metadata.Wrong(kScores, fmt::format("the score of token {} is not finite", id));
  }
  return Status::Ok();
}

}  // namespace

Result<GgufVocabulary> ReadGgufVocabulary(const GgufMetadata& metadata, bool by_scores) {
  GgufVocabulary out;
  KEEL_RETURN_IF_ERROR(ReadTokens(metadata, &out));
  KEEL_RETURN_IF_ERROR(ReadKinds(metadata, &out));
  if (!by_scores) {
    KEEL_RETURN_IF_ERROR(ReadMerges(metadata, &out));
    return out;
  }
  KEEL_RETURN_IF_ERROR(ReadScores(metadata, &out));
  for (size_t id = 0; id < out.tokens.size(); ++id) {
    if (out.tokens[id].size() <= kLongestSplit) continue;
    return metadata.Wrong(kTokens, fmt::format("token {} has {} bytes, at most {} are supported",
                                               id, out.tokens[id].size(), kLongestSplit));
  }
  out.merges = MergesByScore(out, out.scores, out.ids);
  return out;
}

}  // namespace keel::model
