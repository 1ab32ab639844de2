// Where a Hugging Face directory keeps its chat template.
#include "common/files/template_files.h"

#include <algorithm>
#include <filesystem>
#include <map>

#include "common/files/downloaded.h"
#include "common/files/file_system.h"
#include "common/json_builder.h"
#include "common/text.h"
#include "model/chat_template/chat_template.h"
#include "model/chat_template/jinja/limits.h"

namespace keel::model {
namespace {

constexpr int64_t kMaxConfigBytes = int64_t{64} << 20;
constexpr const char* kConfigFile = "tokenizer_config.json";
constexpr const char* kTokensFile = "special_tokens_map.json";
constexpr const char* kTemplateFile = "chat_template.jinja";
constexpr const char* kDefaultName = "default";

struct Source {
  std::string text;
  std::string where;
};
using Sources = std::map<std::string, Source>;

bool Exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Result<Json> ReadObject(const FileSystem& fs, const std::string& directory, const char* name) {
  if (!Exists(directory + "/" + name)) return Json::object();
  KEEL_ASSIGN_OR_RETURN(const std::string text, ReadDownloadedOrEmpty(fs, name, kMaxConfigBytes));
  KEEL_ASSIGN_OR_RETURN(Json json, ParsePythonJson(text, directory + "/" + name));
  if (!json.is_object()) {
    return Status(StatusCode::kInvalidData, directory + "/" + name + ": expected an object");
  }
  return json;
}

// A token is a string, or an object with its text in "content"; null: it is neither.
Json TokenText(const Json& value) {
  if (value.is_string()) return value;
  const auto content = value.is_object() ? value.find("content") : value.end();
  return content != value.end() && content->is_string() ? *content : Json();
}

// Every "..._token", and of a map of extra tokens each by its name. What is null is none.
void AddTokens(const Json& from, Json* tokens) {
  const auto add = [&](const std::string& name, const Json& value) {
    if (const Json text = TokenText(value); !text.is_null()) (*tokens)[name] = text;
    if (value.is_null()) tokens->erase(name);
  };
  for (const auto& [name, value] : from.items())
    if (name.ends_with("_token")) add(name, value);
  const auto extra = from.find("extra_special_tokens");
  if (extra == from.end() || !extra->is_object()) return;
  for (const auto& [name, value] : extra->items()) add(name, value);
}

Status AddFile(const FileSystem& fs, const std::string& directory, const std::string& file,
               const std::string& name, Sources* sources) {
  KEEL_ASSIGN_OR_RETURN(
      std::string text,
      ReadDownloadedOrEmpty(fs, file, static_cast<int64_t>(jinja::kMaxSourceBytes)));
  (*sources)[name] = {std::move(text), directory + "/" + file};
  return Status::Ok();
}

Status AddFiles(const FileSystem& fs, const std::string& directory, Sources* sources) {
  if (Exists(directory + "/" + kTemplateFile)) {
    KEEL_RETURN_IF_ERROR(AddFile(fs, directory, kTemplateFile, kDefaultName, sources));
  }
  KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> more, MoreTemplateFiles(fs));
  for (const std::string& file : more) {
    const std::string name = std::filesystem::path(file).stem().string();
    KEEL_RETURN_IF_ERROR(AddFile(fs, directory, file, name, sources));
  }
  return Status::Ok();
}

Status AddFromConfig(const Json& config, const std::string& where, Sources* sources) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) return Status::Ok();
  if (found->is_string()) {
    (*sources)[kDefaultName] = {found->get<std::string>(), where + " (chat_template)"};
    return Status::Ok();
  }
  const auto refuse = [&] {
    return Status(StatusCode::kInvalidData,
                  where +
                      ": chat_template must be a string, a list of {name, template}, or a map "
                      "of names to templates");
  };
  const auto add = [&](const std::string& name, const Json& text) {
    if (text.is_string()) {
      (*sources)[name] = {text.get<std::string>(),
                          where + " (chat_template '" + Printable(name, 60) + "')"};
    }
    return text.is_string();
  };
  if (found->is_object()) {
    for (const auto& [name, text] : found->items())
      if (!add(name, text)) return refuse();
    return Status::Ok();
  }
  if (!found->is_array()) return refuse();
  for (const Json& entry : *found) {
    const bool named = entry.is_object() && entry.contains("name") && entry.contains("template") &&
                       entry["name"].is_string();
    if (!named || !add(entry["name"].get<std::string>(), entry["template"])) return refuse();
  }
  return Status::Ok();
}

Json TokensOf(const Json& config, const Json& map) {
  Json tokens = Json::object();
  AddTokens(config, &tokens);
  // As the tokenizer has them: the map goes before the configuration, unless that has the added
  // tokens, too; then nobody looks at the map.
  if (!config.contains("added_tokens_decoder")) AddTokens(map, &tokens);
  return tokens;
}

std::string Names(const Sources& sources) {
  std::string names;
  for (const auto& [name, source] : sources) {
    names += (names.empty() ? "" : ", ") + Printable(name, 60);
  }
  return names;
}

}  // namespace

Result<std::optional<ChatTemplate>> LoadChatTemplate(const std::string& directory,
                                                     std::string_view name) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const Json config, ReadObject(*fs, directory, kConfigFile));
  KEEL_ASSIGN_OR_RETURN(const Json map, ReadObject(*fs, directory, kTokensFile));
  Sources sources;
  // A file takes the place of what the configuration says, as transformers writes it since 4.43.
  KEEL_RETURN_IF_ERROR(AddFiles(*fs, directory, &sources));
  if (sources.empty()) {
    KEEL_RETURN_IF_ERROR(AddFromConfig(config, directory + "/" + kConfigFile, &sources));
  }
  if (sources.empty()) return std::optional<ChatTemplate>();
  auto chosen = sources.find(name.empty() ? std::string(kDefaultName) : std::string(name));
  if (chosen == sources.end() && name.empty() && sources.size() == 1) chosen = sources.begin();
  if (chosen == sources.end()) {
    return Status(StatusCode::kNotFound,
                  directory + ": no chat template is named '" +
                      (name.empty() ? std::string(kDefaultName) : Printable(name, 60)) +
                      "'; there are " + Names(sources));
  }
  KEEL_ASSIGN_OR_RETURN(const ChatTemplate parsed,
                        ChatTemplate::Parse(chosen->second.text, chosen->second.where));
  return std::optional<ChatTemplate>(parsed.WithSpecialTokens(TokensOf(config, map)));
}

Result<Json> LoadSpecialTokens(const std::string& directory) {
  KEEL_ASSIGN_OR_RETURN(const auto fs, OpenPosixFileSystem(directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(const Json config, ReadObject(*fs, directory, kConfigFile));
  KEEL_ASSIGN_OR_RETURN(const Json map, ReadObject(*fs, directory, kTokensFile));
  return TokensOf(config, map);
}

}  // namespace keel::model
