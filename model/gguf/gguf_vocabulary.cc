#include "model/gguf/gguf_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <tuple>

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
    out->kinds.assign(out->tokens.size(), GgufTokenKind::kNormal);
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
    out->kinds.push_back(static_cast<GgufTokenKind>(kind));
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

// SentencePiece joins the two neighbours whose token has the best score. As a list: each token
// split everywhere where both parts are tokens, the best scores first; of equal scores the longer
// parts first. A stable sort after that by the parts' ids keeps the order that transformers gives.
void DeriveMerges(GgufVocabulary* out) {
  struct Split {
    float score;
    int64_t left_id, right_id;
    size_t left_length, right_length;  // in characters
    std::string_view left, right;
  };
  const auto joins = [&](int64_t id) {
    const GgufTokenKind kind = out->kinds[static_cast<size_t>(id)];
    return kind == GgufTokenKind::kNormal || kind == GgufTokenKind::kUnused ||
           kind == GgufTokenKind::kUserDefined;
  };
  const auto characters = [](std::string_view text) {
    return static_cast<size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
  };
  std::vector<Split> splits;
  for (size_t id = 0; id < out->tokens.size(); ++id) {
    const std::string_view token = out->tokens[id];
    if (!joins(static_cast<int64_t>(id))) continue;
    const size_t first = splits.size();
    for (size_t at = 1; at < token.size(); ++at) {
      if ((static_cast<uint8_t>(token[at]) & 0xc0) == 0x80) continue;  // within a character
      const auto left = out->ids.find(token.substr(0, at));
      if (left == out->ids.end() || !joins(left->second)) continue;
      const auto right = out->ids.find(token.substr(at));
      if (right == out->ids.end() || !joins(right->second)) continue;
      splits.push_back({out->scores[id], left->second, right->second, characters(left->first),
                        characters(right->first), left->first, right->first});
    }
    std::sort(splits.begin() + static_cast<std::ptrdiff_t>(first), splits.end(),
              [](const Split& a, const Split& b) {
                return std::pair(a.left_id, a.right_id) < std::pair(b.left_id, b.right_id);
              });
  }
  std::stable_sort(splits.begin(), splits.end(), [](const Split& a, const Split& b) {
    return std::tuple(a.score, a.left_length, a.right_length) >
           std::tuple(b.score, b.left_length, b.right_length);
  });
  for (const Split& split : splits) out->merges.emplace_back(split.left, split.right);
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
  DeriveMerges(&out);
  return out;
}

}  // namespace keel::model
