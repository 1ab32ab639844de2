#include "model/gguf/gguf_tokenizer.h"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <optional>
#include <string_view>
#include <utility>
#include <vector>

#include "common/text.h"
#include "model/gguf/gguf_pre_tokenizer.h"
#include "model/gguf/gguf_vocabulary.h"

namespace keel::model {

namespace {

constexpr std::string_view kSpace = "\xe2\x96\x81";  // U+2581, SentencePiece's space
constexpr std::string_view kTemplate = "tokenizer.chat_template";

// What is read below, and what changes nothing that Keel does with a text: names of tokens for
// filling in the middle, masks, and what only other kinds of vocabularies heed.
constexpr std::string_view kUnderstood[] = {"add_bos_token",
                                            "add_eos_token",
                                            "add_space_prefix",
                                            "bos_token_id",
                                            "cls_token_id",
                                            "eom_token_id",
                                            "eos_token_id",
                                            "eot_token_id",
                                            "fim_mid_token_id",
                                            "fim_middle_token_id",
                                            "fim_pad_token_id",
                                            "fim_pre_token_id",
                                            "fim_prefix_token_id",
                                            "fim_rep_token_id",
                                            "fim_sep_token_id",
                                            "fim_suf_token_id",
                                            "fim_suffix_token_id",
                                            "mask_token_id",
                                            "merges",
                                            "middle_token_id",
                                            "model",
                                            "padding_token_id",
                                            "pre",
                                            "prefix_token_id",
                                            "scores",
                                            "seperator_token_id",
                                            "suffix_token_id",
                                            "token_type",
                                            "token_type_count",
                                            "tokens",
                                            "unknown_token_id"};

Status CheckKeys(const GgufMetadata& metadata) {
  constexpr std::string_view kPrefix = "tokenizer.ggml.";
  for (const std::string& key : metadata.keys()) {
    if (!key.starts_with(kPrefix)) continue;
    const std::string_view name = std::string_view(key).substr(kPrefix.size());
    if (std::find(std::begin(kUnderstood), std::end(kUnderstood), name) == std::end(kUnderstood))
      return metadata.Wrong(key,
                            "is not understood: texts might become other tokens, so it is refused");
  }
  return Status::Ok();
}

// The token that a key names; nothing when there is no such key.
Result<std::optional<int64_t>> ReadId(const GgufMetadata& metadata, std::string_view name,
                                      const GgufVocabulary& vocabulary) {
  const std::string key = fmt::format("tokenizer.ggml.{}_token_id", name);
  KEEL_ASSIGN_OR_RETURN(const int64_t id, metadata.Int(key, -1));
  if (id == -1 || id == UINT32_MAX) return std::optional<int64_t>();
  if (id < 0 || id >= std::ssize(vocabulary.tokens)) {
    return metadata.Wrong(
        key, fmt::format("{} is outside the vocabulary of {}", id, vocabulary.tokens.size()));
  }
  return std::optional<int64_t>(id);
}

struct SpecialIds {
  std::optional<int64_t> bos, eos, unknown, padding;
  bool adds_bos = false, adds_eos = false;
};

Result<SpecialIds> ReadSpecialIds(const GgufMetadata& metadata, const GgufVocabulary& vocabulary,
                                  bool adds_bos) {
  SpecialIds ids;
  KEEL_ASSIGN_OR_RETURN(ids.bos, ReadId(metadata, "bos", vocabulary));
  KEEL_ASSIGN_OR_RETURN(ids.eos, ReadId(metadata, "eos", vocabulary));
  KEEL_ASSIGN_OR_RETURN(ids.unknown, ReadId(metadata, "unknown", vocabulary));
  KEEL_ASSIGN_OR_RETURN(ids.padding, ReadId(metadata, "padding", vocabulary));
  constexpr const char* kAddBos = "tokenizer.ggml.add_bos_token";
  constexpr const char* kAddEos = "tokenizer.ggml.add_eos_token";
  KEEL_ASSIGN_OR_RETURN(ids.adds_bos, metadata.Bool(kAddBos, adds_bos && ids.bos.has_value()));
  KEEL_ASSIGN_OR_RETURN(ids.adds_eos, metadata.Bool(kAddEos, false));
  if (ids.adds_bos && !ids.bos)
    return metadata.Wrong(kAddBos, "is true, and tokenizer.ggml.bos_token_id is missing");
  if (ids.adds_eos && !ids.eos)
    return metadata.Wrong(kAddEos, "is true, and tokenizer.ggml.eos_token_id is missing");
  return ids;
}

// Control tokens are special; user-defined ones are found in texts as they are, too, but stay in
// what is decoded.
Json AddedTokens(const GgufVocabulary& vocabulary) {
  Json added = Json::array();
  for (size_t id = 0; id < vocabulary.tokens.size(); ++id) {
    const GgufTokenKind kind = vocabulary.kinds[id];
    const bool special = kind == GgufTokenKind::kControl || kind == GgufTokenKind::kUnknown;
    if (!special && kind != GgufTokenKind::kUserDefined) continue;
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
Json TemplateProcessing(const SpecialIds& ids, const GgufVocabulary& vocabulary) {
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

Json Model(const GgufVocabulary& vocabulary) {
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

Json Empty(const GgufVocabulary& vocabulary) {
  return {{"version", "1.0"},          {"truncation", nullptr},
          {"padding", nullptr},        {"added_tokens", AddedTokens(vocabulary)},
          {"normalizer", nullptr},     {"pre_tokenizer", nullptr},
          {"post_processor", nullptr}, {"decoder", nullptr},
          {"model", Model(vocabulary)}};
}

Json ByteLevelStep() {
  return {{"type", "ByteLevel"},
          {"add_prefix_space", false},
          {"trim_offsets", true},
          {"use_regex", true}};
}

Json ByteLevelTokenizer(const GgufVocabulary& vocabulary, const GgufPreTokenizer& pre,
                        const SpecialIds& ids) {
  Json json = Empty(vocabulary);
  json["normalizer"] = pre.normalizer;
  json["pre_tokenizer"] = pre.pre_tokenizer;
  const Json ends = TemplateProcessing(ids, vocabulary);
  json["post_processor"] = ends.is_null() ? ByteLevelStep() : ends;
  json["decoder"] = ByteLevelStep();
  json["model"]["ignore_merges"] = pre.ignore_merges;
  return json;
}

// SentencePiece: a space before the text (where the file wants one), spaces as U+2581, and what is
// not in the vocabulary byte by byte.
Json SentencePieceTokenizer(const GgufVocabulary& vocabulary, const SpecialIds& ids,
                            bool space_before) {
  Json json = Empty(vocabulary);
  Json steps = Json::array();
  if (space_before) steps.push_back({{"type", "Prepend"}, {"prepend", kSpace}});
  steps.push_back({{"type", "Replace"}, {"pattern", {{"String", " "}}}, {"content", kSpace}});
  json["normalizer"] = {{"type", "Sequence"}, {"normalizers", std::move(steps)}};
  json["post_processor"] = TemplateProcessing(ids, vocabulary);
  Json back =
      Json::array({{{"type", "Replace"}, {"pattern", {{"String", kSpace}}}, {"content", " "}},
                   {{"type", "ByteFallback"}},
                   {{"type", "Fuse"}}});
  if (space_before)
    back.push_back({{"type", "Strip"}, {"content", " "}, {"start", 1}, {"stop", 0}});
  json["decoder"] = {{"type", "Sequence"}, {"decoders", std::move(back)}};
  Json& model = json["model"];
  if (ids.unknown) model["unk_token"] = vocabulary.tokens[static_cast<size_t>(*ids.unknown)];
  model["fuse_unk"] = true;
  model["byte_fallback"] = true;
  return json;
}

// The template, or several by their names: the first is "default".
Status ReadTemplates(const GgufMetadata& metadata, GgufTokenizer* out) {
  std::vector<std::pair<std::string, std::string>> templates;
  const std::string named = std::string(kTemplate) + ".";
  for (const std::string& key : metadata.keys()) {
    if (key != kTemplate && !key.starts_with(named)) continue;
    KEEL_ASSIGN_OR_RETURN(std::string text, metadata.String(key));
    if (FindNotUtf8(text) != std::string::npos) return metadata.Wrong(key, "is not UTF-8");
    const std::string name = key == kTemplate ? "default" : key.substr(named.size());
    if (FindNotUtf8(name) != std::string::npos) return metadata.Wrong(key, "is not UTF-8");
    templates.emplace_back(name, std::move(text));
  }
  if (templates.size() == 1 && templates[0].first == "default") {
    out->chat_template = templates[0].second;
    out->config["chat_template"] = out->chat_template;
    return Status::Ok();
  }
  if (templates.empty()) return Status::Ok();
  Json list = Json::array();
  for (const auto& [name, text] : templates) list.push_back({{"name", name}, {"template", text}});
  out->config["chat_template"] = std::move(list);
  return Status::Ok();
}

Json TokenizerConfig(const GgufVocabulary& vocabulary, const SpecialIds& ids) {
  Json config = {{"tokenizer_class", "PreTrainedTokenizerFast"},
                 {"clean_up_tokenization_spaces", false},
                 {"add_bos_token", ids.adds_bos},
                 {"add_eos_token", ids.adds_eos}};
  const auto name = [&](const char* key, const std::optional<int64_t>& id) {
    if (id) config[key] = vocabulary.tokens[static_cast<size_t>(*id)];
  };
  name("bos_token", ids.bos);
  name("eos_token", ids.eos);
  name("unk_token", ids.unknown);
  name("pad_token", ids.padding);
  return config;
}

}  // namespace

Result<GgufTokenizer> ReadGgufTokenizer(const GgufMetadata& metadata) {
  KEEL_ASSIGN_OR_RETURN(const std::string kind, metadata.String("tokenizer.ggml.model"));
  const bool by_scores = kind == "llama";
  if (!by_scores && kind != "gpt2") {
    return metadata.Wrong(
        "tokenizer.ggml.model",
        fmt::format("\"{}\" is not supported, expected gpt2 or llama", Printable(kind)));
  }
  KEEL_RETURN_IF_ERROR(CheckKeys(metadata));
  std::optional<GgufPreTokenizer> pre;
  if (!by_scores) {
    constexpr const char* kPre = "tokenizer.ggml.pre";
    KEEL_ASSIGN_OR_RETURN(const std::string name, metadata.String(kPre));
    pre = GgufPreTokenizerOf(name);
    if (!pre) {
      return metadata.Wrong(kPre, fmt::format("\"{}\" is not known to Keel, which knows {}",
                                              Printable(name), GgufPreTokenizerNames()));
    }
  }
  KEEL_ASSIGN_OR_RETURN(const GgufVocabulary vocabulary, ReadGgufVocabulary(metadata, by_scores));
  KEEL_ASSIGN_OR_RETURN(const SpecialIds ids,
                        ReadSpecialIds(metadata, vocabulary, by_scores || pre->adds_bos));
  KEEL_ASSIGN_OR_RETURN(const bool space_before,
                        metadata.Bool("tokenizer.ggml.add_space_prefix", by_scores));
  if (!by_scores && space_before) {
    return metadata.Wrong("tokenizer.ggml.add_space_prefix",
                          "is true, which Keel knows of no byte-level vocabulary");
  }
  GgufTokenizer out;
  out.tokenizer = by_scores ? SentencePieceTokenizer(vocabulary, ids, space_before)
                            : ByteLevelTokenizer(vocabulary, *pre, ids);
  out.config = TokenizerConfig(vocabulary, ids);
  KEEL_RETURN_IF_ERROR(ReadTemplates(metadata, &out));
  return out;
}

}  // namespace keel::model
