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

constexpr std::string_view kTemplate = "tokenizer.chat_template";

// What is read below, and what changes nothing that Keel does with a text: names of tokens for
// filling in the middle, masks, and what only other kinds of vocabularies heed.
constexpr std::string_view kUnderstood[] = {"add_bos_token",
                                            "add_eos_token",
                                            "add_sep_token",
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

// The tokens of Phi-3 that are no text take the white space behind them, but for three. No file
// says it, and llama.cpp knows it by the model's name.
Status StripBehindPhisTokens(const GgufMetadata& metadata, Json* tokenizer) {
  constexpr std::string_view kOthers[] = {"<unk>", "<s>", "<|endoftext|>"};
  KEEL_ASSIGN_OR_RETURN(const std::string family, metadata.String("general.architecture", ""));
  if (family != "phi3") return Status::Ok();
  for (Json& token : (*tokenizer)["added_tokens"]) {
    const auto& text = token["content"].get_ref<const std::string&>();
    token["rstrip"] = std::find(std::begin(kOthers), std::end(kOthers), text) == std::end(kOthers);
  }
  return Status::Ok();
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
  out.tokenizer =
      by_scores ? SentencePieceTokenizer(vocabulary, ids,
                                         space_before ? SpaceBefore::kEachPart : SpaceBefore::kNone)
                : ByteLevelTokenizer(vocabulary, ids,
                                     {pre->normalizer, pre->pre_tokenizer, pre->ignore_merges});
  // Phi-4's vocabularies are not by scores.
  if (by_scores) KEEL_RETURN_IF_ERROR(StripBehindPhisTokens(metadata, &out.tokenizer));
  out.config = TokenizerConfig(vocabulary, ids);
  KEEL_RETURN_IF_ERROR(ReadTemplates(metadata, &out));
  return out;
}

}  // namespace keel::model
