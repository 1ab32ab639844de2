#include "model/tokenizer/files/open_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <charconv>
#include <iterator>
#include <optional>
#include <utility>
#include <vector>

#include "common/files/downloaded.h"
#include "common/files/file_system.h"
#include "common/guarded.h"
#include "common/json_builder.h"
#include "common/text.h"
#include "model/tokenizer/files/sentencepiece_file.h"
#include "model/tokenizer/files/tekken_file.h"
#include "model/tokenizer/files/tiktoken_file.h"
#include "model/tokenizer/files/tokenizer_json.h"

namespace keel::model {

namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;
constexpr int64_t kMaxSettingsBytes = int64_t{32} << 20;
constexpr const char* kAddedTokens = "added_tokens.json";
constexpr const char* kDecoder = "added_tokens_decoder";

// A token is named by its text, or by an object with the text and flags.
std::optional<std::string> NameOfToken(const Json& settings, const char* key,
                                       const std::string& where) {
  const auto found = settings.find(key);
  if (found == settings.end() || found->is_null()) return std::nullopt;
  if (found->is_string()) return found->get<std::string>();
  if (found->is_object() && found->contains("content") && (*found)["content"].is_string()) {
    return (*found)["content"].get<std::string>();
  }
  throw Error(
      StatusCode::kInvalidData,
      fmt::format("{}: {} is neither a token's text nor an object with its content", where, key));
}

// What a folder says of its tokens: tokenizer_config.json, and special_tokens_map.json, which goes
// before it, unless the former has the added tokens, too: then nobody looks at the latter.
struct Settings {
  Json config = Json::object();
  Json map = Json::object();  // empty where nobody looks at it
  Json all = Json::object();
  std::string where;
  // With it the settings have all added tokens, and transformers does not look at
  // added_tokens.json.
  bool has_decoder() const { return config.contains(kDecoder); }
};

constexpr const char* kTaskTokens[] = {"bos_token", "eos_token", "unk_token", "sep_token",
                                       "pad_token", "cls_token", "mask_token"};

bool IsOtherTask(const std::string& key) {
  return key.ends_with("_token") && std::ranges::find(kTaskTokens, key) == std::end(kTaskTokens);
}

using TokensByName = std::vector<std::pair<std::string, Json>>;

// One of the same name is replaced, and keeps its place.
void Put(const std::string& name, const Json& token, TokensByName* tokens) {
  const auto own = std::ranges::find(*tokens, name, &TokensByName::value_type::first);
  if (own == tokens->end()) {
    tokens->emplace_back(name, token);
  } else {
    own->second = token;
  }
}

// Those of other names that end so: objects of tokenizer_config.json and all that
// special_tokens_map.json has, in the order of the files; behind them the texts of the former, of
// which a map of extra_special_tokens may replace those of its names.
TokensByName OtherTaskTokens(const Json& all, const Json& config, const Json& map) {
  TokensByName tokens;
  TokensByName texts;
  for (const auto& [key, value] : config.items())
    if (IsOtherTask(key)) Put(key, value, value.is_string() ? &texts : &tokens);
  for (const auto& [key, value] : map.items())
    if (IsOtherTask(key)) Put(key, value, &tokens);
  const auto take_map = [&](const char* name) {
    const auto of_name = all.find(name);
    if (of_name == all.end() || !of_name->is_object()) return;
    for (const auto& [key, value] : of_name->items()) Put(key, value, &texts);
  };
  take_map("extra_special_tokens");
  if (texts.empty()) take_map("model_specific_special_tokens");
  for (const auto& [key, value] : texts) Put(key, value, &tokens);
  return tokens;
}

// Every token that the settings name for a task, in the order in which transformers adds them: its
// own names, then others that end so, and lists.
struct NamedTokens {
  std::vector<AddedToken> named;
  std::vector<AddedToken> extra;  // of lists
};
NamedTokens NamedTokensOf(const Json& all, const Json& config, const Json& map,
                          const std::string& where) {
  NamedTokens found;
  const auto add = [&](const Json& json, bool task) {
    auto token = ValueOrThrow(ReadNamedToken(json, where));
    if (!token || token->content.empty()) return;
    token->special = token->special || task;
    (task ? found.named : found.extra).push_back(*std::move(token));
  };
  for (const char* key : kTaskTokens)
    if (all.contains(key)) add(all[key], true);
  for (const auto& [key, value] : OtherTaskTokens(all, config, map)) add(value, true);
  auto list = all.find("extra_special_tokens");
  const bool other = config.contains("additional_special_tokens");
  if (list == all.end() || (list->empty() && (other || list->is_object())))
    list = all.find("additional_special_tokens");
  if (list == all.end() || !(list->is_array() || list->is_object())) return found;
  // A map gives each a name of its own, and takes no list's place.
  const bool named = list->is_object();
  if (!named)
    for (const Json& value : *list) add(value, false);
  const auto more = all.find("additional_special_tokens");
  if (named && !list->empty() && more != all.end() && more->is_array())
    for (const Json& value : *more) add(value, false);
  return found;
}

void AddNamedTokens(const Settings& settings, FurtherTokens* further) {
  NamedTokens found = NamedTokensOf(settings.all, settings.config, settings.map, settings.where);
  further->named = std::move(found.named);
  further->extra = std::move(found.extra);
  if (settings.map.empty() || settings.all == settings.config) return;
  const auto names = [&](const Json& file) {
    std::vector<std::string> contents;
    const NamedTokens of_file = NamedTokensOf(file, file, Json::object(), settings.where);
    for (const auto* tokens : {&of_file.named, &of_file.extra})
      for (const AddedToken& token : *tokens) contents.push_back(token.content);
    return contents;
  };
  further->two_files = settings.where;
  further->of_first = names(settings.config);
  further->of_second = names(settings.map);
  // What both say of one token, and of further ones.
  const auto dispute = [&](std::vector<std::string> first, std::vector<std::string> second,
                           bool none_counts = false) {
    std::ranges::sort(first);
    std::ranges::sort(second);
    if (first.empty() || (second.empty() && !none_counts)) return;
    std::ranges::set_symmetric_difference(first, second, std::back_inserter(further->disputed));
  };
  const auto part = [](const Json& file, const auto& wanted) {
    Json of_part = Json::object();
    for (const auto& [key, value] : file.items())
      if (wanted(key)) of_part[key] = value;
    return of_part;
  };
  const auto of_lists = [](std::string_view key) { return key.ends_with("_special_tokens"); };
  dispute(names(part(settings.config, of_lists)), names(part(settings.map, of_lists)));
  for (const auto& [key, value] : settings.map.items()) {
    if (std::ranges::find(kTaskTokens, key) != std::end(kTaskTokens)) continue;
    const auto same = [name = std::string_view(key)](std::string_view other) {
      return other == name;
    };
    if (of_lists(key) && value == Json::array())
      dispute(names(part(settings.config, same)), {}, true);
    if (key.ends_with("_token"))
      dispute(names(part(settings.config, same)), names(part(settings.map, same)));
  }
}

// transformers adds what the tokenizer's file lacks, by id, and goes by these flags, except that
// one that the settings name for a task is special whatever it says of itself.
std::vector<AddedToken> DeclaredTokensOf(const Settings& settings,
                                         const std::vector<AddedToken>& named) {
  std::vector<AddedToken> declared;
  if (!settings.has_decoder()) return declared;
  for (const auto& [id, json] : settings.config[kDecoder].items()) {
    auto token = ValueOrThrow(ReadNamedToken(json, settings.where));
    int32_t number = -1;
    const auto [end, error] = std::from_chars(id.data(), id.data() + id.size(), number);
    if (!token || !json.is_object() || number < 0 || error != std::errc() ||
        end != id.data() + id.size()) {
      throw Error(
          StatusCode::kInvalidData,
          fmt::format("{}: {} has \"{}\": {}, expected an id and an object with the "
                      "token's content",
                      settings.where, kDecoder, Printable(id, 60), Printable(json.dump(), 60)));
    }
    token->id = number;
    if (!token->special &&
        std::ranges::find(named, token->content, &AddedToken::content) != named.end()) {
      token->special = true;
      if (!json.contains("normalized")) token->normalized = false;  // what it is goes by the other
    }
    declared.push_back(*std::move(token));
  }
  std::ranges::sort(declared, {}, &AddedToken::id);
  return declared;
}

class DirectoryReader {
 public:
  explicit DirectoryReader(const std::string& directory)
      : fs_(ValueOrThrow(OpenPosixFileSystem(directory, false, LinkPolicy::kFollow))),
        directory_(directory) {}

  std::unique_ptr<Tokenizer> Open() {
    std::vector<std::string> present;
    for (const FileInfo& file : ValueOrThrow(fs_->List("."))) present.push_back(file.name);
    const auto has = [&](std::string_view name) {
      return std::find(present.begin(), present.end(), name) != present.end();
    };
    Settings settings =
        ReadAllSettings(has("tokenizer_config.json"), has("special_tokens_map.json"));
    const auto name = [&](const char* key) {
      return NameOfToken(settings.all, key, settings.where);
    };
    const SpecialNames names = {name("bos_token"), name("eos_token"), name("pad_token")};
    FurtherTokens further;
    further.has_decoder = settings.has_decoder();
    if (has(kAddedTokens) && !settings.has_decoder()) ReadAddedTokens(settings, &further);
    std::string bytes;
    std::optional<TokenizerFile> file;
    const std::string path = fs_->Describe("tokenizer.json");
    if (has("tokenizer.json")) {
      bytes = Read("tokenizer.json");
      file = ValueOrThrow(ReadTokenizerJson(bytes, path));
      // Where the settings say nothing of one, if only null, transformers takes it for the pad
      // token, which it adds where it is none yet.
      if (file->pad_token && !settings.all.contains("pad_token"))
        settings.all["pad_token"] = *file->pad_token;
    }
    AddNamedTokens(settings, &further);
    further.declared = DeclaredTokensOf(settings, further.named);
    auto tokenizer =
        file ? ValueOrThrow(MakeTokenizer(*std::move(file), bytes, path, names, further))
             : FromOther(present, settings.config, names, further);
    CheckAddedTokens(further, settings.where, *tokenizer);
    return tokenizer;
  }

 private:
  std::string Read(const std::string& name) const {
    return ValueOrThrow(ReadDownloaded(*fs_, name, kMaxTokenizerBytes));
  }

  void ReadAddedTokens(const Settings& settings, FurtherTokens* further) const {
    const NamedTokens named =
        NamedTokensOf(settings.all, settings.config, settings.map, settings.where);
    std::vector<std::string> special;
    for (const auto* tokens : {&named.named, &named.extra})
      for (const AddedToken& token : *tokens) special.push_back(token.content);
    further->where = fs_->Describe(kAddedTokens);
    further->tokens =
        ValueOrThrow(ReadAddedTokensFile(ReadSettings(kAddedTokens), special, further->where));
  }

  // Of a directory without tokenizer.json. What the settings name is taken before what the file
  // says itself.
  std::unique_ptr<Tokenizer> FromOther(const std::vector<std::string>& present,
                                       const Json& settings, const SpecialNames& names,
                                       const FurtherTokens& further) const {
    const auto find = [&](auto is) { return std::find_if(present.begin(), present.end(), is); };
    std::optional<TokenizerDocument> found;
    std::string path;
    const auto take = [&](const std::string& name, auto read) {
      path = fs_->Describe(name);
      found = ValueOrThrow(read(Read(name), path));
    };
    const auto named = [](const char* wanted) {
      return [wanted](const std::string& name) { return name == wanted; };
    };
    const auto ranks = find([](const std::string& name) { return name.ends_with(".tiktoken"); });
    if (find(named("tekken.json")) != present.end()) {
      take("tekken.json", [](const std::string& text, const std::string& where) {
        return ReadTekken(text, where);
      });
    } else if (find(named("tokenizer.model")) != present.end()) {
      take("tokenizer.model", [&](const std::string& bytes, const std::string& where) {
        return ReadSentencePiece(bytes, settings, where);
      });
    } else if (ranks != present.end()) {
      take(*ranks, [&](const std::string& text, const std::string& where) {
        return ReadTiktoken(text, settings, where);
      });
    } else {
      throw Error(NoTokenizer(present));
    }
    const SpecialNames all = {names.bos ? names.bos : found->names.bos,
                              names.eos ? names.eos : found->names.eos,
                              names.pad ? names.pad : found->names.pad};
    return ValueOrThrow(ParseTokenizerJson(found->json.dump(), path, all, further));
  }

  Status NoTokenizer(const std::vector<std::string>& present) const {
    std::vector<std::string> others;
    for (const std::string& name : present) {
      if (name == "vocab.json" || name == "vocab.txt" || name == "merges.txt" ||
          name == "spiece.model") {
        others.push_back(name);
      }
    }
    const char* way_out =
        "tokenizer.json, tekken.json, tokenizer.model and *.tiktoken are read; transformers' "
        "AutoTokenizer.from_pretrained(DIR).save_pretrained(DIR) writes the first";
    if (others.empty()) {
      return {StatusCode::kNotFound,
              fmt::format("{}: it holds no tokenizer; {}", directory_, way_out)};
    }
    return {StatusCode::kInvalidData,
            fmt::format("{}: its tokenizer is in {}, which Keel does not read; {}", directory_,
                        fmt::join(others, ", "), way_out)};
  }

  Json ReadSettings(const std::string& name) const {
    const std::string path = fs_->Describe(name);
    const std::string text = ValueOrThrow(ReadDownloaded(*fs_, name, kMaxSettingsBytes));
    Json json = ValueOrThrow(ParsePythonJson(text, path));
    if (!json.is_object()) {
      throw Error(StatusCode::kInvalidData, path + ": a JSON object is expected");
    }
    return json;
  }

  Settings ReadAllSettings(bool has_config, bool has_map) const {
    Settings settings;
    std::vector<std::string> paths;
    const auto read = [&](bool has, const char* name) {
      if (!has) return Json(Json::object());
      paths.push_back(fs_->Describe(name));
      return ReadSettings(name);
    };
    settings.config = read(has_config, "tokenizer_config.json");
    // transformers takes an object for a token where it says that it is one. Its place stays, which
    // the other file may fill.
    for (auto member : settings.config.items())
      if (IsOtherTask(member.key()) && member.value().is_object() &&
          member.value().value("__type", Json()) != "AddedToken")
        member.value() = nullptr;
    settings.all = settings.config;
    settings.map = read(has_map, "special_tokens_map.json");
    settings.where = fmt::format("{}", fmt::join(paths, " and "));
    if (settings.has_decoder()) settings.map = Json::object();
    settings.all.update(settings.map);
    const auto split = settings.config.find("split_special_tokens");
    if (split != settings.config.end() && *split == true) {
      throw Error(StatusCode::kInvalidData,
                  settings.where +
                      ": split_special_tokens is true, which is not supported: special tokens that "
                      "are written out in a text become their ids; set it to false");
    }
    return settings;
  }

  // One that the tokenizer has by another id: transformers goes on with its own.
  static void CheckAddedTokens(const FurtherTokens& further, const std::string& where,
                               const Tokenizer& tokenizer) {
    for (const AddedToken& token : further.declared) {
      const auto known = tokenizer.IdOf(token.content);
      if (known == token.id) continue;
      throw Error(
          StatusCode::kInvalidData,
          fmt::format("{}: {} has \"{}\" as {}, but the tokenizer has it as {}; the files "
                      "belong to different tokenizers",
                      where, kDecoder, Printable(token.content), token.id, known.value_or(-1)));
    }
  }

  std::unique_ptr<FileSystem> fs_;
  std::string directory_;
};

}  // namespace

Result<std::unique_ptr<Tokenizer>> OpenTokenizer(const std::string& directory) {
  try {
    return DirectoryReader(directory).Open();
  } catch (const std::exception& e) {
    return StatusOf(e);
  }
}

}  // namespace keel::model
