#include "model/tokenizer/files/tekken_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <string>
#include <vector>

#include "model/tokenizer/files/rank_vocabulary.h"
#include "model/tokenizer/files/token_list.h"

namespace keel::model {

namespace {

constexpr int64_t kMostTekken = 1 << 22;
constexpr int64_t kMostSpecials = 1 << 16;  // those that are not listed get names, too

// Of files that list none: those that mistral-common gives them.
constexpr const char* kSpecials[] = {"<unk>",
                                     "<s>",
                                     "</s>",
                                     "[INST]",
                                     "[/INST]",
                                     "[AVAILABLE_TOOLS]",
                                     "[/AVAILABLE_TOOLS]",
                                     "[TOOL_RESULTS]",
                                     "[/TOOL_RESULTS]",
                                     "[TOOL_CALLS]",
                                     "[IMG]",
                                     "<pad>",
                                     "[IMG_BREAK]",
                                     "[IMG_END]",
                                     "[PREFIX]",
                                     "[MIDDLE]",
                                     "[SUFFIX]",
                                     "[SYSTEM_PROMPT]",
                                     "[/SYSTEM_PROMPT]",
                                     "[TOOL_CONTENT]"};

Status Wrong(std::string_view where, std::string_view what) {
  return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, what));
}

Result<int64_t> GetSize(const Json& config, const char* key, const std::string& where) {
  KEEL_ASSIGN_OR_RETURN(const int64_t size, GetInt(config, key, where));
  if (size >= 0 && size <= kMostTekken) return size;
  return Wrong(where, fmt::format("{} is {}, expected 0 to {}", key, size, kMostTekken));
}

// The names of the first ids.
Result<std::vector<std::string>> ReadSpecials(const Json& file, int64_t count,
                                              const std::string& where) {
  std::vector<std::string> names(static_cast<size_t>(count));
  for (size_t id = 0; id < names.size(); ++id) names[id] = fmt::format("<SPECIAL_{}>", id);
  const auto listed = file.find("special_tokens");
  if (listed == file.end() || listed->is_null()) {
    for (size_t id = 0; id < std::min(names.size(), std::size(kSpecials)); ++id)
      names[id] = kSpecials[id];
    return names;
  }
  if (!listed->is_array()) return Wrong(where, "special_tokens: expected a list");
  for (const Json& token : *listed) {
    KEEL_ASSIGN_OR_RETURN(const int64_t rank, GetInt(token, "rank", where + ": special_tokens"));
    if (rank < 0 || rank >= count)
      return Wrong(where, fmt::format("special_tokens: rank {} of {}", rank, count));
    KEEL_ASSIGN_OR_RETURN(names[static_cast<size_t>(rank)],
                          GetString(token, "token_str", where + ": special_tokens"));
  }
  return names;
}

Result<std::vector<std::string>> ReadRanks(const Json& file, int64_t count,
                                           const std::string& where) {
  const auto vocab = file.find("vocab");
  if (vocab == file.end() || !vocab->is_array()) return Wrong(where, "vocab: expected a list");
  if (std::ssize(*vocab) < count) {
    return Wrong(where, fmt::format("vocab has {} tokens, and config says {} without the special "
                                    "ones",
                                    vocab->size(), count));
  }
  std::vector<std::string> bytes;
  bytes.reserve(static_cast<size_t>(count));
  for (int64_t rank = 0; rank < count; ++rank) {
    const Json& token = (*vocab)[static_cast<size_t>(rank)];
    const std::string at = fmt::format("{}: vocab[{}]", where, rank);
    KEEL_ASSIGN_OR_RETURN(const int64_t said, GetInt(token, "rank", at));
    if (said != rank) return Wrong(at, fmt::format("rank is {}", said));
    KEEL_ASSIGN_OR_RETURN(const std::string encoded, GetString(token, "token_bytes", at));
    KEEL_ASSIGN_OR_RETURN(std::string decoded, DecodeBase64(encoded, at));
    bytes.push_back(std::move(decoded));
  }
  return bytes;
}

}  // namespace

Result<TokenizerDocument> ReadTekken(std::string_view text, std::string_view from) {
  const std::string where(from);
  KEEL_ASSIGN_OR_RETURN(const Json file, ParseJson(text, where));
  if (!file.is_object() || !file.contains("config") || !file["config"].is_object())
    return Wrong(where, "config: expected a map");
  const Json& config = file["config"];
  const std::string in_config = where + ": config";
  KEEL_ASSIGN_OR_RETURN(const std::string pattern, GetString(config, "pattern", in_config));
  KEEL_ASSIGN_OR_RETURN(const int64_t size, GetSize(config, "default_vocab_size", in_config));
  KEEL_ASSIGN_OR_RETURN(const int64_t special,
                        GetSize(config, "default_num_special_tokens", in_config));
  if (special < 3 || special >= size || special > kMostSpecials) {
    return Wrong(in_config, fmt::format("{} special tokens of {}: expected 3 to {}, and fewer than "
                                        "there are tokens",
                                        special, size, kMostSpecials));
  }
  TokenList list;
  KEEL_ASSIGN_OR_RETURN(list.tokens, ReadSpecials(file, special, where));
  KEEL_ASSIGN_OR_RETURN(const auto bytes, ReadRanks(file, size - special, where));
  KEEL_ASSIGN_OR_RETURN(RankVocabulary ranks, MakeRankVocabulary(bytes, where));
  list.kinds.assign(list.tokens.size(), TokenKind::kControl);
  list.kinds.resize(static_cast<size_t>(size), TokenKind::kNormal);
  TokenizerDocument out;
  out.names = {list.tokens[1], list.tokens[2], std::nullopt};
  const auto pad = std::find(list.tokens.begin(), list.tokens.end(), "<pad>");
  if (pad != list.tokens.end()) out.names.pad = *pad;
  for (std::string& token : ranks.tokens) list.tokens.push_back(std::move(token));
  list.merges = std::move(ranks.merges);
  SpecialIds ids;
  ids.unknown = 0;
  ids.bos = 1;
  ids.eos = 2;
  ids.adds_bos = true;
  out.json = ByteLevelTokenizer(list, ids, SplitBy(pattern));
  return out;
}

}  // namespace keel::model
