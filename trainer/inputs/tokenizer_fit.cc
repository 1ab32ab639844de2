#include "trainer/inputs/tokenizer_fit.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "model/hf_config.h"

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
  KEEL_ASSIGN_OR_RETURN(Json json, ParseJson(found->second, where));
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

std::string OwnChatTemplate(const ModelFiles& files) {
  for (const char* name : {"chat_template.jinja", "chat_template.json"})
    if (files.contains(name)) return name;
  const auto settings = files.find("tokenizer_config.json");
  const bool inside =
      settings != files.end() && settings->second.find("\"chat_template\"") != std::string::npos;
  return inside ? "tokenizer_config.json" : "";
}

Status DoesNotFit(const std::string& text) {
  return Status(StatusCode::kConfig,
                fmt::format("the tokenizer is bytes (data.tokenizer, or {} of the model), but {}",
                            kTokenizerMark, text));
}

}  // namespace

std::vector<std::string> TokenizerFileNames() {
  return {"tokenizer.json", "tokenizer.model", "tekken.json", "spiece.model",
          "vocab.json",     "vocab.txt",       "merges.txt",  "tokenizer_config.json"};
}

Result<TokenizerFit> FitTokenizer(std::optional<TokenizerKind> wanted, const Json& config,
                                  const std::string& directory, const ModelFiles& files) {
  TokenizerFit fit;
  if (const std::string name = OwnChatTemplate(files); !name.empty()) {
    fit.no_chat = fmt::format(
        "{} has a chat template of its own ({}), which this release does not "
        "apply; it writes ChatML",
        directory, name);
  }
  if (wanted == TokenizerKind::kIds) {
    fit.ids_only = "data.tokenizer is ids";
    return fit;
  }
  const std::string own = OwnTokenizer(files);
  if (!own.empty()) {
    if (wanted) {
      return DoesNotFit(fmt::format(
          "{} has a tokenizer of its own ({}), whose ids are no bytes: leave data.tokenizer out, "
          "and give rows with input_ids that this tokenizer made",
          directory, own));
    }
    fit.ids_only = fmt::format(
        "{} has a tokenizer of its own ({}), which this release does not run", directory, own);
    return fit;
  }
  const auto bytes = model::MakeTokenizer(TokenizerKind::kBytes);
  KEEL_ASSIGN_OR_RETURN(const auto problems, ByteProblems(*bytes, config, directory, files));
  const bool marked = IsByteModel(config, *bytes);
  if (problems.empty() && (wanted || marked || directory.empty())) {
    fit.kind = TokenizerKind::kBytes;
    return fit;
  }
  if (wanted || (marked && config.contains(kTokenizerMark))) {
    return DoesNotFit(
        fmt::format("{}: give the model's settings the tokenizer's values, or set "
                    "data.tokenizer to ids",
                    fmt::join(problems, "; ")));
  }
  fit.ids_only =
      problems.empty()
          ? fmt::format(
                "{} has no tokenizer, and its config.json does not say that it was trained "
                "on bytes (data.tokenizer: bytes does)",
                directory)
          : fmt::format("the model is none of bytes ({})", fmt::join(problems, "; "));
  return fit;
}

Result<std::vector<int64_t>> StopTokenIds(const Json& config, int64_t vocab_size,
                                          const std::string& directory, const ModelFiles& files) {
  KEEL_ASSIGN_OR_RETURN(const Json generation, GenerationSettings(directory, files));
  std::vector<int64_t> ids;
  for (const auto& [json, name] : {std::pair{&config, "config.json"}, {&generation, kGeneration}}) {
    const std::string where = directory.empty() ? "model.config" : directory + "/" + name;
    KEEL_ASSIGN_OR_RETURN(const std::vector<int64_t> found, model::ParseEosTokenIds(*json, where));
    if (const Status fit = model::CheckSpecialIds(*json, vocab_size, where); !fit.ok())
      return Status(StatusCode::kConfig, fit.message());
    for (const int64_t id : found) {
      if (std::find(ids.begin(), ids.end(), id) == ids.end()) ids.push_back(id);
    }
  }
  return ids;
}

}  // namespace keel::trainer
