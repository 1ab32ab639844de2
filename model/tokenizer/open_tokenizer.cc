#include "model/tokenizer/open_tokenizer.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <optional>
#include <utility>
#include <vector>

#include "common/file_system.h"
#include "common/guarded.h"
#include "common/json.h"
#include "common/text.h"
#include "model/tokenizer/tokenizer_json.h"

namespace keel::model {

namespace {

constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;
constexpr int64_t kMaxSettingsBytes = int64_t{32} << 20;

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
    if (!has("tokenizer.json")) throw Error(NoTokenizer(present));

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
    const std::string name = "tokenizer.json";
    auto tokenizer = ValueOrThrow(ParseTokenizerJson(
        ValueOrThrow(ReadFile(*fs_, name, kMaxTokenizerBytes)), fs_->Describe(name), names));
    if (!paths.empty()) CheckAddedTokens(settings.front(), paths.front(), *tokenizer);
    return tokenizer;
  }

 private:
  Status NoTokenizer(const std::vector<std::string>& present) const {
    std::vector<std::string> others;
    for (const std::string& name : present) {
      if (name == "tokenizer.model" || name == "tekken.json" || name == "vocab.json" ||
          name == "vocab.txt" || name == "merges.txt" || name == "spiece.model" ||
          name.ends_with(".tiktoken")) {
        others.push_back(name);
      }
    }
    const char* way_out =
        "tokenizer.json is read; transformers' AutoTokenizer.from_pretrained(DIR)"
        ".save_pretrained(DIR) writes one";
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
    Json json =
        ValueOrThrow(ParseJson(ValueOrThrow(ReadFile(*fs_, name, kMaxSettingsBytes)), path));
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
