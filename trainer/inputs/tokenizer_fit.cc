#include "trainer/inputs/tokenizer_fit.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <limits>
#include <utility>

#include "common/json_builder.h"
#include "model/config/hf_config.h"
#include "model/tokenizer/files/open_tokenizer.h"

namespace keel::trainer {

namespace {

using model::TokenizerKind;

constexpr const char* kGeneration = "generation_config.json";
constexpr int64_t kByteIds = 256;  // smaller ids are bytes of text

std::optional<int64_t> IdOf(const Json& json, const char* key) {
  const auto found = json.find(key);
  if (found == json.end() || !found->is_number_integer()) return std::nullopt;
  return found->get<int64_t>();
}

// The settings of text generation; an empty object where there are none.
Result<Json> GenerationSettings(const std::string& directory, const ModelFiles& files) {
  const auto found = files.find(kGeneration);
  if (found == files.end()) return Json::object();
  const std::string where = directory + "/" + kGeneration;
  KEEL_ASSIGN_OR_RETURN(Json json, ParsePythonJson(found->second, where));
  if (json.is_object()) return json;
  return Status(StatusCode::kInvalidData, where + ": expected a map");
}

// What of a model's settings contradicts the byte tokenizer.
Result<std::vector<std::string>> ByteProblems(const model::Tokenizer& bytes, const Json& config,
                                              const std::string& directory,
                                              const ModelFiles& files) {
  std::vector<std::string> problems;
  const auto vocabulary = IdOf(config, "vocab_size");
  if (vocabulary && *vocabulary < bytes.vocab_size()) {
    problems.push_back(fmt::format("vocab_size {} is less than the {} ids of the tokenizer bytes",
                                   *vocabulary, bytes.vocab_size()));
  }
  KEEL_ASSIGN_OR_RETURN(const Json generation, GenerationSettings(directory, files));
  const std::string name = directory.empty() ? "model.config" : "config.json";
  for (const auto& [json, where] : {std::pair{&config, name.c_str()}, {&generation, kGeneration}}) {
    if (const auto bos = IdOf(*json, "bos_token_id"); bos && *bos != *bytes.bos()) {
      problems.push_back(
          fmt::format("{}: bos_token_id is {}, the tokenizer bytes begins a text "
                      "with {}",
                      where, *bos, *bytes.bos()));
    }
    KEEL_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, model::ParseEosTokenIds(*json, where));
    if (!ends.empty() && std::find(ends.begin(), ends.end(), *bytes.eos()) == ends.end()) {
      problems.push_back(
          fmt::format("{}: eos_token_id is {}, the tokenizer bytes ends a text with "
                      "{}",
                      where, fmt::join(ends, ", "), *bytes.eos()));
    }
    if (const auto pad = IdOf(*json, "pad_token_id"); pad && *pad >= 0 && *pad < kByteIds) {
      problems.push_back(
          fmt::format("{}: pad_token_id {} is a byte of text to the tokenizer bytes", where, *pad));
    }
  }
  return problems;
}

// Trained on bytes by Keel: marked as such, or as exports were before there was a mark.
bool IsByteModel(const Json& config, const model::Tokenizer& bytes) {
  const auto mark = config.find(kTokenizerMark);
  if (mark != config.end()) return *mark == Json(NameOf(TokenizerKind::kBytes));
  return IdOf(config, "vocab_size").value_or(0) >= bytes.vocab_size() &&
         IdOf(config, "bos_token_id") == *bytes.bos() &&
         IdOf(config, "eos_token_id") == *bytes.eos();
}

// "tokenizer.json, tokenizer_config.json"; "" when there are none.
std::string OwnTokenizer(const ModelFiles& files) {
  std::vector<std::string> found;
  for (const std::string& name : TokenizerFileNames())
    if (files.contains(name)) found.push_back(name);
  return fmt::format("{}", fmt::join(found, ", "));
}

Status DoesNotFit(const std::string& text) {
  return Status(StatusCode::kConfig,
                fmt::format("the tokenizer is bytes (data.tokenizer, or {} of the model), but {}",
                            kTokenizerMark, text));
}

// Whether a text may become an id from `vocabulary` on that it does not spell out: of special
// tokens alone, such as Gemma 3's of pictures, the model need not know any. A row that has one is
// refused.
bool ReachesBeyond(const model::Tokenizer& tokenizer, int64_t vocabulary) {
  for (int64_t id = std::max<int64_t>(0, vocabulary); id < tokenizer.vocab_size(); ++id) {
    const auto token = static_cast<int32_t>(id);
    if (!tokenizer.TokenOf(token).empty() && !tokenizer.IsSpecial(token)) return true;
  }
  return tokenizer.bos() >= vocabulary || tokenizer.eos() >= vocabulary ||
         tokenizer.pad() >= vocabulary;
}

// The model must know every id that the tokenizer makes, and the tokenizer those that the model
// begins and ends texts with.
Status CheckOwnTokenizer(const model::Tokenizer& tokenizer, const Json& config,
                         const std::string& folder, const std::string& model) {
  const auto refuse = [](const std::string& text) { return Status(StatusCode::kConfig, text); };
  const auto vocabulary = IdOf(config, "vocab_size");
  if (vocabulary && tokenizer.vocab_size() > *vocabulary && ReachesBeyond(tokenizer, *vocabulary)) {
    return refuse(fmt::format(
        "{}: the tokenizer has {} ids, and vocab_size of {} is {}: they are not of one model; "
        "give the tokenizer that the model was trained with, or a larger vocab_size",
        folder, tokenizer.vocab_size(), model, *vocabulary));
  }
  std::vector<std::pair<const char*, int64_t>> named;
  if (const auto bos = IdOf(config, "bos_token_id")) named.emplace_back("bos_token_id", *bos);
  KEEL_ASSIGN_OR_RETURN(const std::vector<int64_t> ends, model::ParseEosTokenIds(config, model));
  for (const int64_t id : ends) named.emplace_back("eos_token_id", id);
  for (const auto& [key, id] : named) {
    if (id < 0 || id > std::numeric_limits<int32_t>::max()) continue;  // CheckSpecialIds says it
    if (!tokenizer.TokenOf(static_cast<int32_t>(id)).empty()) continue;
    return refuse(
        fmt::format("{}: the tokenizer has no token {}, which is the {} of {}: they are "
                    "not of one model",
                    folder, id, key, model));
  }
  return Status::Ok();
}

// With the chat template that goes with the tokenizer.
Result<TokenizerFit> WithChat(TokenizerFit fit, const TokenizerChoice& choice,
                              const std::string& folder) {
  KEEL_ASSIGN_OR_RETURN(ChatFit chat, FitChat(choice.chat, folder, fit.bytes));
  fit.text.chat = std::move(chat.rules);
  fit.text.no_chat = std::move(chat.missing);
  fit.text.chat_unusable = chat.unusable;
  if (!chat.warning.empty()) fit.warnings.push_back(std::move(chat.warning));
  return fit;
}

}  // namespace

std::vector<std::string> TokenizerFileNames() {
  return {"tokenizer.json", "tokenizer.model", "tekken.json",
          "spiece.model",   "vocab.json",      "vocab.txt",
          "merges.txt",     "qwen.tiktoken",   "tokenizer_config.json"};
}

Result<TokenizerFit> FitTokenizer(const TokenizerChoice& choice, const Json& config,
                                  const std::string& directory, const ModelFiles& files) {
  const std::string& folder = choice.tokenizer_path.empty() ? directory : choice.tokenizer_path;
  const auto& wanted = choice.kind;
  TokenizerFit fit;
  if (wanted == TokenizerKind::kIds) {
    fit.text.ids_only = "data.tokenizer is ids";
    return fit;
  }
  const std::string own = OwnTokenizer(files);
  if (!own.empty()) {
    if (wanted) {
      return DoesNotFit(fmt::format(
          "{} has a tokenizer of its own ({}), whose ids are no bytes: leave data.tokenizer out",
          folder, own));
    }
    Result<std::unique_ptr<model::Tokenizer>> opened = model::OpenTokenizer(folder);
    if (!opened.ok()) {
      fit.text.ids_only =
          fmt::format("{} has a tokenizer of its own ({}), which cannot be used: {}", folder, own,
                      opened.status().message());
      return fit;
    }
    KEEL_RETURN_IF_ERROR(CheckOwnTokenizer(
        **opened, config, folder, directory.empty() ? "model.config" : directory + "/config.json"));
    fit.tokenizer = *std::move(opened);
    fit.text = TextRules(*fit.tokenizer);
    fit.text.tokenizer_name = folder;
    fit.text.frames_text = true;
    return WithChat(std::move(fit), choice, folder);
  }
  if (!choice.tokenizer_path.empty()) {
    return Status(
        StatusCode::kConfig,
        fmt::format("actor_rollout_ref.model.tokenizer_path: {} has no tokenizer: none of "
                    "{} is there",
                    folder, fmt::join(TokenizerFileNames(), ", ")));
  }
  auto bytes = model::MakeTokenizer(TokenizerKind::kBytes);
  KEEL_ASSIGN_OR_RETURN(const auto problems, ByteProblems(*bytes, config, directory, files));
  const bool marked = IsByteModel(config, *bytes);
  if (problems.empty() && (wanted || marked || directory.empty())) {
    fit.tokenizer = std::move(bytes);
    fit.bytes = true;
    fit.text = TextRules(*fit.tokenizer);
    return WithChat(std::move(fit), choice, folder);
  }
  if (wanted || (marked && config.contains(kTokenizerMark))) {
    return DoesNotFit(
        fmt::format("{}: give the model's settings the tokenizer's values, or set "
                    "data.tokenizer to ids",
                    fmt::join(problems, "; ")));
  }
  fit.text.ids_only =
      problems.empty()
          ? fmt::format(
                "{} has no tokenizer, and its config.json does not say that it was trained "
                "on bytes (data.tokenizer: bytes does)",
                directory)
          : fmt::format("the model is none of bytes ({})", fmt::join(problems, "; "));
  return fit;
}

Result<std::vector<int64_t>> StopTokenIds(const Json& config, int64_t vocab_size,
                                          const std::string& directory, const ModelFiles& files,
                                          const model::Tokenizer* tokenizer) {
  KEEL_ASSIGN_OR_RETURN(const Json generation, GenerationSettings(directory, files));
  std::vector<int64_t> ids;
  const auto add = [&](int64_t id) {
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
  };
  for (const auto& [json, name] : {std::pair{&config, "config.json"}, {&generation, kGeneration}}) {
    const std::string where = directory.empty() ? "model.config" : directory + "/" + name;
    KEEL_ASSIGN_OR_RETURN(const std::vector<int64_t> found, model::ParseEosTokenIds(*json, where));
    if (const Status fit = model::CheckSpecialIds(*json, vocab_size, where); !fit.ok())
      return Status(StatusCode::kConfig, fit.message());
    for (const int64_t id : found) add(id);
  }
  // A model that was tuned to a template ends its answers by the tokenizer's, whatever the two say.
  if (tokenizer != nullptr && tokenizer->eos()) add(*tokenizer->eos());
  return ids;
}

}  // namespace keel::trainer
