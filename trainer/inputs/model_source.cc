#include "trainer/inputs/model_source.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <filesystem>
#include <optional>
#include <utility>

#include "checkpoint/format/names.h"
#include "checkpoint/hf/other_model_files.h"
#include "common/files/downloaded.h"
#include "common/files/file_system.h"
#include "common/files/template_files.h"
#include "common/json_builder.h"
#include "common/text.h"
#include "model/config/text_part.h"
#include "trainer/data/rows/chat_rules.h"
#include "trainer/inputs/run_paths.h"
#include "trainer/inputs/text_part_weights.h"

namespace keel::trainer {

namespace {

constexpr int64_t kMaxTextFile = int64_t{64} << 20;
// Beside the tokenizer's own.
constexpr std::array kFurtherFiles = {"special_tokens_map.json", "added_tokens.json",
                                      "generation_config.json", "chat_template.jinja",
                                      "chat_template.json"};

}  // namespace

bool MakesText(std::string_view name) {
  const std::vector<std::string> names = TokenizerFileNames();
  return std::ranges::find(names, name) != names.end() || name.starts_with(kMoreTemplates) ||
         (name != "generation_config.json" &&
          std::ranges::find(kFurtherFiles, name) != kFurtherFiles.end());
}

namespace {

// What stands beside the weights; a file that is there and cannot be read is an error.
Status ReadModelFiles(const FileSystem& fs, ModelFiles* files) {
  std::vector<std::string> names = TokenizerFileNames();
  names.insert(names.end(), kFurtherFiles.begin(), kFurtherFiles.end());
  KEEL_ASSIGN_OR_RETURN(const std::vector<std::string> more, MoreTemplateFiles(fs));
  names.insert(names.end(), more.begin(), more.end());
  for (const std::string& name : names) {
    Result<std::string> content = name.ends_with(".jinja")
                                      ? ReadDownloadedOrEmpty(fs, name, kMaxTextFile)
                                      : ReadDownloaded(fs, name, kMaxTextFile);
    if (content.status().code() == StatusCode::kNotFound) continue;
    KEEL_RETURN_IF_ERROR(content.status());
    (*files)[name] = std::move(*content);
  }
  return Status::Ok();
}

// The way from the folder of a run, or from a step of one, to a model; or "".
std::string WayFromARun(const ModelOptions& options, const std::string& directory) {
  const std::filesystem::path path(directory);
  std::error_code ignored;
  if (std::filesystem::is_directory(path / "actor" / "model", ignored))
    return "; it is a step of a run: give what keel ckpt export-hf makes of it";
  std::optional<std::pair<int64_t, std::string>> newest;
  for (const auto& entry : std::filesystem::directory_iterator(path, ignored)) {
    const auto step = checkpoint::ParseStepDirectory(entry.path().filename().string());
    if (step && (!newest || *step > newest->first)) newest = {*step, entry.path().string()};
  }
  if (!newest) return "";
  // Commands take steps where training takes models alone.
  return fmt::format("; it is the folder of a run: {} of it, such as {}",
                     options.path_key.starts_with("--")
                         ? "name a step"
                         : "give what keel ckpt export-hf makes of a step",
                     newest->second);
}

Status ReadDirectory(const ModelOptions& options, ModelSource* source, ModelFiles* files) {
  const auto fs = OpenPosixFileSystem(source->directory, false, LinkPolicy::kFollow);
  if (fs.status().code() == StatusCode::kNotFound) {
    const char* const why =
        IsUnexpanded(source->directory)
            ? "no shell has put anything in the place of ~ or of a variable: write it out"
            : "names of a model hub are not looked up: download the model and give its directory";
    return Status(StatusCode::kNotFound, fmt::format("{}: {}: there is no such directory; {}",
                                                     options.path_key, source->directory, why));
  }
  std::error_code ignored;
  if (std::filesystem::is_regular_file(source->directory, ignored)) {
    const bool gguf = source->directory.ends_with(".gguf");
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: {}: is a file, not a model's directory: {}", options.path_key,
                              source->directory,
                              gguf ? "keel ckpt import-gguf makes a directory of it"
                                   : "give the directory that it lies in"));
  }
  if (!fs.ok()) return fs.status().WithContext(options.path_key);
  const auto text = ReadDownloaded(**fs, "config.json", kMaxTextFile);
  if (text.status().code() == StatusCode::kNotFound) {
    return Status(
        StatusCode::kNotFound,
        fmt::format("{}: {}: has no config.json: not a Hugging Face model{}{}", options.path_key,
                    source->directory, checkpoint::WayFromOtherFiles(**fs, ""),
                    WayFromARun(options, source->directory)));
  }
  if (!text.ok()) return text.status().WithContext(options.path_key);
  KEEL_ASSIGN_OR_RETURN(source->json, ParsePythonJson(*text, source->directory + "/config.json"));
  return ReadModelFiles(**fs, files);
}

// The files of another directory in the place of those of the model's that make a tokenizer.
Status TakeOtherTokenizer(const std::string& directory, ModelFiles* files) {
  if (directory.empty()) return Status::Ok();
  std::erase_if(*files, [](const auto& file) { return MakesText(file.first); });
  ModelFiles other;
  const auto fs = OpenPosixFileSystem(directory, false, LinkPolicy::kFollow);
  const Status read = fs.ok() ? ReadModelFiles(**fs, &other) : fs.status();
  KEEL_RETURN_IF_ERROR(read.WithContext("actor_rollout_ref.model.tokenizer_path"));
  other.erase("generation_config.json");
  files->merge(other);
  return Status::Ok();
}

// What is to be said of layers that predict further tokens.
Status TakeFurtherLayers(ModelSource* source) {
  KEEL_ASSIGN_OR_RETURN(const auto fs,
                        OpenPosixFileSystem(source->directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(std::string note, FurtherLayersNote(*fs, source->config));
  if (!note.empty()) source->left_out.push_back(std::move(note));
  return Status::Ok();
}

// Of a directory of texts and images what is read of it. `where` names config.json, for messages.
Status TakeTextPart(std::string* where, ModelSource* source) {
  KEEL_ASSIGN_OR_RETURN(auto part, model::TextPartOf(source->json, *where));
  if (!part) return Status::Ok();
  KEEL_ASSIGN_OR_RETURN(const auto fs,
                        OpenPosixFileSystem(source->directory, false, LinkPolicy::kFollow));
  KEEL_ASSIGN_OR_RETURN(std::string note, SettleTextPart(*fs, &*part));
  if (!note.empty()) source->left_out.push_back(std::move(note));
  source->json = std::move(part->json);
  *where += ": text_config";
  return Status::Ok();
}

// What the configuration's own keys leave to the tokenizer.
void FillFromTokenizer(const model::Tokenizer& tokenizer, Json* json) {
  const auto fill = [&](const char* key, std::optional<int64_t> value) {
    if (value && !json->contains(key)) (*json)[key] = *value;
  };
  fill("vocab_size", tokenizer.vocab_size());
  // So that whoever generates with an export stops where the training texts ended.
  fill("bos_token_id", tokenizer.bos());
  fill("eos_token_id", tokenizer.eos());
}

// Whoever writes the keys himself means something by each, unlike whoever has a file.
Status CheckHandWritten(const Json& keys, std::string_view where,
                        std::vector<std::string>* warnings) {
  const model::UnreadKeys unread = model::UnreadKeysOf(keys);
  if (!unread.misspelt.empty()) {
    std::vector<std::string> problems;
    for (const auto& [key, near] : unread.misspelt)
      problems.push_back(fmt::format("{}: unknown key, did you mean {}?", Printable(key), near));
    return Status(StatusCode::kConfig, fmt::format("{}: {}", where, fmt::join(problems, "; ")));
  }
  if (!unread.others.empty()) {
    warnings->push_back(fmt::format("{}: nothing reads {}: the model is the same without", where,
                                    Printable(fmt::format("{}", fmt::join(unread.others, ", ")))));
  }
  return Status::Ok();
}

}  // namespace

std::vector<int32_t> StopTokens(const ModelSource& model) {
  std::vector<int32_t> ids(model.stop_ids.begin(), model.stop_ids.end());
  if (ids.empty() && model.tokenizer != nullptr && model.tokenizer->eos())
    ids.push_back(*model.tokenizer->eos());
  return ids;
}

Result<ModelSource> ResolveModel(const std::string& path, const Json& keys, DType dtype,
                                 const ModelOptions& options) {
  ModelSource source;
  source.directory = path;
  source.json = keys;
  ModelFiles files;
  std::string where = "actor_rollout_ref.model.config";
  if (!path.empty()) {
    where = path + "/config.json";
    KEEL_RETURN_IF_ERROR(ReadDirectory(options, &source, &files));
  }
  if (!source.json.is_object()) return model::ParseHfConfig(source.json, where).status();
  if (path.empty()) KEEL_RETURN_IF_ERROR(CheckHandWritten(keys, where, &source.warnings));
  if (!path.empty()) KEEL_RETURN_IF_ERROR(TakeTextPart(&where, &source));
  KEEL_RETURN_IF_ERROR(TakeOtherTokenizer(options.tokenizer.tokenizer_path, &files));
  KEEL_ASSIGN_OR_RETURN(TokenizerFit fit,
                        FitTokenizer(options.tokenizer, source.json, path, files));
  if (fit.tokenizer != nullptr && path.empty()) FillFromTokenizer(*fit.tokenizer, &source.json);
  // Without the key transformers takes the family's own, which may be beyond this vocabulary.
  if (path.empty() && !source.json.contains("pad_token_id")) source.json["pad_token_id"] = nullptr;
  // So that whoever goes on from an export, or generates with it, reads text as this run does.
  if (fit.bytes) source.json[kTokenizerMark] = NameOf(model::TokenizerKind::kBytes);
  const ChatRules* chat = fit.text.chat.get();
  if (!options.tokenizer.chat.source.empty() && chat != nullptr) {
    if (!(fit.bytes && chat->chatml)) files["chat_template.jinja"] = chat->chat.source();
    std::erase_if(files, [](const auto& file) { return file.first.starts_with(kMoreTemplates); });
  }
  if (fit.tokenizer != nullptr) source.tokenizer_digest = fit.tokenizer->digest().ToHex();
  source.tokenizer = std::move(fit.tokenizer);
  source.text = std::move(fit.text);
  source.warnings.insert(source.warnings.end(), fit.warnings.begin(), fit.warnings.end());

  const auto config = model::ParseHfConfig(source.json, where);
  if (!config.ok()) {
    return path.empty() ? Status(StatusCode::kConfig, config.status().message()) : config.status();
  }
  source.config = *config;
  if (const double dropout =
          std::max({config->attention_dropout, config->residual_dropout, config->other_dropout});
      dropout > 0) {
    source.warnings.push_back(
        fmt::format("{}: names a dropout of {}, with which transformers would train: Keel computes "
                    "no dropout",
                    where, dropout));
  }
  if (!path.empty()) KEEL_RETURN_IF_ERROR(TakeFurtherLayers(&source));
  source.warnings.insert(source.warnings.end(), source.left_out.begin(), source.left_out.end());
  KEEL_ASSIGN_OR_RETURN(source.stop_ids, StopTokenIds(source.json, source.config.vocab_size, path,
                                                      files, source.tokenizer.get()));
  for (auto& [name, content] : files)
    source.documents.push_back({"actor/huggingface/" + name, std::move(content), false});
  source.documents.push_back({"actor/huggingface/config.json",
                              model::ToHfJson(source.config, dtype, &source.json).dump(2) + "\n",
                              false});
  return source;
}

Result<DirectoryTokenizer> OpenDirectoryTokenizer(const std::string& directory,
                                                  const ModelOptions& options) {
  ModelSource source;
  source.directory = directory;
  ModelFiles files;
  std::error_code ignored;
  if (std::filesystem::exists(directory + "/config.json", ignored)) {
    KEEL_RETURN_IF_ERROR(ReadDirectory(options, &source, &files));
    KEEL_ASSIGN_OR_RETURN(auto part, model::TextPartOf(source.json, directory + "/config.json"));
    if (part) source.json = std::move(part->json);
  } else {
    const auto fs = OpenPosixFileSystem(directory, false, LinkPolicy::kFollow);
    const Status read = fs.ok() ? ReadModelFiles(**fs, &files) : fs.status();
    KEEL_RETURN_IF_ERROR(read.WithContext(options.path_key));
    source.json = Json::object();
  }
  DirectoryTokenizer found;
  KEEL_ASSIGN_OR_RETURN(found.fit, FitTokenizer(options.tokenizer, source.json, directory, files));
  if (source.json.contains("vocab_size")) {
    KEEL_ASSIGN_OR_RETURN(found.vocab_size,
                          GetInt(source.json, "vocab_size", directory + "/config.json"));
  } else if (found.fit.tokenizer != nullptr) {
    found.vocab_size = found.fit.tokenizer->vocab_size();
  }
  return found;
}

}  // namespace keel::trainer
