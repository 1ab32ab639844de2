#include "model/tokenizer/files/token_list.h"

#include <algorithm>
#include <tuple>

namespace keel::model {

namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space

// Control tokens are special; user-defined ones are found in texts as they are, too, but stay in
// what is decoded.
Json AddedTokens(const TokenList& vocabulary) {
  Json added = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const TokenKind kind = vocabulary.kinds[id];
    const bool special = kind == TokenKind::kControl || kind == TokenKind::kUnknown;
    if (!special && kind != TokenKind::kUserDefined) continue;
    if (vocabulary.tokens[id].empty()) continue;
    added.push_back({{"id", id},
                     {"content", vocabulary.tokens[id]},
                     {"single_word", false},
                     {"lstrip", false},
                     {"rstrip", false},
                     {"normalized", false},
                     {"special", special}});
  }
  return added;
}

Json Special(const std::string& token, int type) {
  return {{"SpecialToken", {{"id", token}, {"type_id", type}}}};
}
Json Text(const char* name, int type) { return {{"Sequence", {{"id", name}, {"type_id", type}}}}; }

// With the beginning and the end that every text gets; null when it gets none.
Json TemplateProcessing(const SpecialIds& ids, const TokenList& vocabulary) {
  if (!ids.adds_bos && !ids.adds_eos) return nullptr;
  Json single = Json::array(), pair = Json::array(), tokens = Json::object();
  const auto token = [&](int64_t id) -> const std::string& {
    return vocabulary.tokens[static_cast<size_t>(id)];
  };
  for (int type = 0; type < 2; ++type) {
    Json part = Json::array();
    if (ids.adds_bos) part.push_back(Special(token(*ids.bos), type));
    part.push_back(Text(type == 0 ? "A" : "B", type));
    if (ids.adds_eos) part.push_back(Special(token(*ids.eos), type));
    if (type == 0) single = part;
    for (Json& step : part) pair.push_back(std::move(step));
  }
  const auto declare = [&](int64_t id) {
    tokens[token(id)] = {
        {"id", token(id)}, {"ids", Json::array({id})}, {"tokens", Json::array({token(id)})}};
  };
  if (ids.adds_bos) declare(*ids.bos);
  if (ids.adds_eos) declare(*ids.eos);
  return {{"type", "TemplateProcessing"},
          {"single", std::move(single)},
          {"pair", std::move(pair)},
          {"special_tokens", std::move(tokens)}};
}

Json Model(const TokenList& vocabulary) {
  Json vocab = Json::object();
  // Insertion is a search among all before in an ordered map: the pairs are put in whole.
  auto& entries = vocab.get_ref<Json::object_t&>();
  entries.reserve(vocabulary.tokens.size());
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id)
    static_cast<std::vector<Json::object_t::value_type>&>(entries).emplace_back(
        vocabulary.tokens[id], static_cast<int64_t>(id));
  Json merges = Json::array();
  for (const auto& [left, right] : vocabulary.merges) merges.push_back({left, right});
  return {{"type", "BPE"},
          {"dropout", nullptr},
          {"unk_token", nullptr},
          {"continuing_subword_prefix", nullptr},
          {"end_of_word_suffix", nullptr},
          {"fuse_unk", false},
          {"byte_fallback", false},
          {"ignore_merges", false},
          {"vocab", std::move(vocab)},
          {"merges", std::move(merges)}};
}

Json Empty(const TokenList& vocabulary) {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", AddedTokens(vocabulary)},
          {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
          {"post_processor", nullptr}, {"decoder", nullptr},
          {"model", Model(vocabulary)}};
}

// Offsets keep the spaces of their tokens, as transformers' converters have it.
Json ByteLevelStep() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", false},
          {"use_regex", true}};
}

}  // namespace

ByteLevelSplit SplitBy(std::string_view pattern) {
  Json regex = {{"type", "Split"},
                {"pattern", {{"Regex", pattern}}},
                {"behavior", "Isolated"},
                {"invert", false}};
  Json spell = ByteLevelStep();
  spell["use_regex"] = false;
  return {
      nullptr,
      {{"type", "Sequence"}, {"pretokenizers", Json::array({std::move(regex), std::move(spell)})}},
      true};
}

Json ByteLevelTokenizer(const TokenList& vocabulary, const SpecialIds& ids,
                        const ByteLevelSplit& pre) {
  Json json = Empty(vocabulary);
  json["normalizer"] = pre.normalizer;
  json["pre_tokenizer"] = pre.pre_tokenizer;
  const Json ends = TemplateProcessing(ids, vocabulary);
  json["post_processor"] = ends.is_null() ? ByteLevelStep() : ends;
  json["decoder"] = ByteLevelStep();
  json["model"]["ignore_merges"] = pre.ignore_merges;
  return json;
}

Json SentencePieceTokenizer(const TokenList& vocabulary, const SpecialIds& ids, SpaceBefore space) {
  Json json = Empty(vocabulary);
  if (space == SpaceBefore::kFirstPart) {
    json["pre_tokenizer"] = {{"type", "Metaspace"},
                             {"replacement", kSpace},
                             {"prepend_scheme", "first"},
                             {"split", false}};
  } else {
    Json steps = Json::array();
    if (space == SpaceBefore::kEachPart)
      steps.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
    steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
    json["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
  }
  json["post_processor"] = TemplateProcessing(ids, vocabulary);
  Json back =
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}});
  if (space != SpaceBefore::kNone)
    back.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  json["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(back)}};
  Json& model = json["model"];
  if (ids.unknown) model["unk_token"] = vocabulary.tokens[static_cast<size_t>(*ids.unknown)];
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  return json;
}

std::vector<std::pair<std::string, std::string>> MergesByScore(
    const TokenList& list, const std::vector<float>& scores,
    const std::unordered_map<std::string_view, int64_t>& ids) {
  struct Split {
    float score;
    int64_t left_id, right_id;
    size_t left_length, right_length;  // in characters
    std::string_view left, right;
  };
  const auto joins = [&](int64_t id) {
    const TokenKind kind = list.kinds[static_cast<size_t>(id)];
    return kind == TokenKind::kNormal || kind == TokenKind::kUnused ||
           kind == TokenKind::kUserDefined;
  };
  const auto characters = [](std::string_view text) {
    return static_cast<size_t>(std::count_if(
        text.begin(), text.end(), [](char c) { return (static_cast<uint8_t>(c) & 0xc0) != 0x80; }));
  };
  std::vector<Split> splits;
  for (size_t id = 0; id < list.tokens.size(); ++id) {
    const std::string_view token = list.tokens[id];
    if (!joins(static_cast<int64_t>(id))) continue;
    const size_t first = splits.size();
    for (size_t at = 1; at < token.size(); ++at) {
      if ((static_cast<uint8_t>(token[at]) & 0xc0) == 0x80) continue;  // within a character
      const auto left = ids.find(token.substr(0, at));
      if (left == ids.end() || !joins(left->second)) continue;
      const auto right = ids.find(token.substr(at));
      if (right == ids.end() || !joins(right->second)) continue;
      splits.push_back({scores[id], left->second, right->second, characters(left->first),
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
  std::vector<std::pair<std::string, std::string>> merges;
  merges.reserve(splits.size());
  for (const Split& split : splits) merges.emplace_back(split.left, split.right);
  return merges;
}

}  // namespace keel::model
