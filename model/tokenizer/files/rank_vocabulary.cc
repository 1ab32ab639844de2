#include "model/tokenizer/files/rank_vocabulary.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <cstdint>
#include <tuple>
#include <unordered_map>

#include "common/text.h"
#include "model/tokenizer/text/byte_alphabet.h"

namespace keel::model {

Result<RankVocabulary> MakeRankVocabulary(const std::vector<std::string>& bytes,
                                          std::string_view where) {
  const auto refuse = [&](size_t rank, std::string_view what) {
    return Status(StatusCode::kInvalidData, fmt::format("{}: rank {}: {}", where, rank, what));
  };
  RankVocabulary out;
  const ByteAlphabet alphabet;
  std::unordered_map<std::string_view, uint32_t> ranks;
  ranks.reserve(bytes.size());
  for (size_t rank = 0; rank < bytes.size(); ++rank) {
    const std::string& token = bytes[rank];
    if (token.empty()) return refuse(rank, "an empty token");
    if (token.size() > kLongestRanked)
      return refuse(rank, fmt::format("{} bytes, at most {}", token.size(), kLongestRanked));
    const auto [there, added] = ranks.emplace(token, static_cast<uint32_t>(rank));
    if (!added)
      return refuse(rank, fmt::format("the same bytes as rank {}: \"{}\"", there->second,
                                      Printable(token, 60)));
    out.tokens.emplace_back();
    alphabet.Spell(token, &out.tokens.back());
  }
  for (int byte = 0; byte < 256; ++byte) {
    const char one = static_cast<char>(byte);
    if (ranks.contains(std::string_view(&one, 1))) continue;
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: the byte {:#04x} is no token: not every text could be encoded",
                              where, byte));
  }
  std::vector<std::pair<uint32_t, uint32_t>> splits;
  for (const std::string& token : bytes) {
    splits.clear();
    for (size_t at = 1; at < token.size(); ++at) {
      const auto left = ranks.find(std::string_view(token).substr(0, at));
      if (left == ranks.end()) continue;
      const auto right = ranks.find(std::string_view(token).substr(at));
      if (right != ranks.end()) splits.emplace_back(left->second, right->second);
    }
    std::sort(splits.begin(), splits.end());
    for (const auto& [left, right] : splits)
      out.merges.emplace_back(out.tokens[left], out.tokens[right]);
  }
  return out;
}

Result<std::string> DecodeBase64(std::string_view text, std::string_view where) {
  const auto refuse = [&] {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: \"{}\" is not base64", where, Printable(text, 60)));
  };
  const auto value = [](char c) -> int {
    if (c >= 'A' && c <= 'Z') return c - 'A';
    if (c >= 'a' && c <= 'z') return c - 'a' + 26;
    if (c >= '0' && c <= '9') return c - '0' + 52;
    return c == '+' ? 62 : c == '/' ? 63 : -1;
  };
  if (text.size() % 4 != 0) return refuse();
  size_t padding = 0;
  while (padding < 2 && padding < text.size() && text[text.size() - 1 - padding] == '=') ++padding;
  std::string bytes;
  uint32_t bits = 0;
  for (size_t i = 0; i < text.size(); ++i) {
    const bool pad = i >= text.size() - padding;
    const int six = pad ? 0 : value(text[i]);
    if (six < 0) return refuse();
    bits = bits << 6 | static_cast<uint32_t>(six);
    if (i % 4 != 3) continue;
    for (const int shift : {16, 8, 0}) bytes += static_cast<char>(bits >> shift & 0xff);
    bits = 0;
  }
  bytes.resize(bytes.size() - padding);
  return bytes;
}

}  // namespace keel::model
