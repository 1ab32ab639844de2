#include "model/tokenizer/files/open_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

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

// With it the settings have all added tokens, and transformers does not look at added_tokens.json.
bool HasDecoder(const std::vector<Json>& settings) {
  return std::ranges::any_of(
      settings, [](const Json& each) { return each.contains("added_tokens_decoder"); });
}

// Every token that the settings name as one with a task of its own.
std::vector<std::string> SpecialTokensOf(const std::vector<Json>& settings,
                                         const std::vector<std::string>& paths) {
  std::vector<std::string> names;
  for (size_t i = 0; i < settings.size(); ++i) {
    for (const char* key : {"bos_token", "eos_token", "unk_token", "sep_token", "pad_token",
                            "cls_token", "mask_token"}) {
      if (auto name = NameOfToken(settings[i], key, paths[i])) names.push_back(std::move(*name));
    }
    for (const char* key : {"additional_special_tokens", "extra_special_tokens"}) {
      const auto list = settings[i].find(key);
      if (list == settings[i].end() || !list->is_array()) continue;
      for (const Json& token : *list) {
        if (auto name = NameOfToken(Json{{key, token}}, key, paths[i]))
          names.push_back(std::move(*name));
      }
    }
  }
  return names;
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
    std::vector<Json> settings;
    std::vector<std::string> paths;
    for (const char* name : {"tokenizer_config.json", "special_tokens_map.json"}) {
      if (!has(name)) continue;
      paths.push_back(fs_->Describe(name));
      settings.push_back(ReadSettings(name));
    }
    SpecialNames names;
    for (size_t i = 0; i < settings.size(); ++i) {
      const auto fill = [&](const char* key, std::optional<std::string>* name) {
        if (!*name) *name = NameOfToken(settings[i], key, paths[i]);
      };
      fill("bos_token", &names.bos);
      fill("eos_token", &names.eos);
      fill("pad_token", &names.pad);
    }
    FurtherTokens further;
    if (has(kAddedTokens) && !HasDecoder(settings)) {
      further = ValueOrThrow(ReadAddedTokensFile(ReadSettings(kAddedTokens),
                                                 SpecialTokensOf(settings, paths),
                                                 fs_->Describe(kAddedTokens)));
    }
    const bool json = has("tokenizer.json");
    auto tokenizer =
        json ? ValueOrThrow(ParseTokenizerJson(Read("tokenizer.json"),
                                               fs_->Describe("tokenizer.json"), names, further))
             : FromOther(present, has("tokenizer_config.json") ? settings.front() : Json::object(),
                         names, further);
    if (has("tokenizer_config.json")) CheckAddedTokens(settings.front(), paths.front(), *tokenizer);
    return tokenizer;
  }

 private:
  std::string Read(const std::string& name) const {
    return ValueOrThrow(ReadFile(*fs_, name, kMaxTokenizerBytes));
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
    const std::string text = ValueOrThrow(ReadFile(*fs_, name, kMaxSettingsBytes));
    Json json = ValueOrThrow(BuildJson(text, path, {}, WideIntegers::kNearestDouble));
    if (!json.is_object()) {
      throw Error(StatusCode::kInvalidData, path + ": a JSON object is expected");
    }
    return json;
  }

  // transformers adds what tokenizer.json lacks; then the two would give other ids.
  static void CheckAddedTokens(const Json& settings, const std::string& path,
                               const Tokenizer& tokenizer) {
    const auto added = settings.find("added_tokens_decoder");
    if (added == settings.end() || !added->is_object()) return;
    for (const auto& [id, token] : added->items()) {
      const auto content = NameOfToken(Json{{"token", token}}, "token", path).value_or("");
      const auto known = tokenizer.IdOf(content);
      if (known && std::to_string(*known) == id) continue;
      throw Error(
          StatusCode::kInvalidData,
          fmt::format(
              "{}: added_tokens_decoder has \"{}\" as {}, but tokenizer.json has it {}; the "
              "files belong to different tokenizers",
              path, Printable(content), Printable(id),
              known ? fmt::format("as {}", *known) : "not at all"));
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
