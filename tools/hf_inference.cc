#include "tools/hf_inference.h"

#include <fmt/format.h>

#include <fstream>

#include "trainer/model_source.h"

namespace keel::tools {

HfInference::HfInference(const std::string& directory, const std::string& dtype) {
  const auto source =
      ValueOrThrow(trainer::ResolveModel(directory, Json::object(), DType::kF32, nullptr));
  config_ = source.config;
  stop_ids_ = config_.eos_token_ids;
  for (const auto& document : source.documents) {
    if (!document.path.ends_with("/generation_config.json")) continue;
    const std::string where = directory + "/generation_config.json";
    const Json json = ValueOrThrow(ParseJson(document.content, where));
    const auto ids = ValueOrThrow(model::ParseEosTokenIds(json, where));
    stop_ids_.insert(stop_ids_.end(), ids.begin(), ids.end());
  }
  const bool bf16 = dtype == "bfloat16" || (dtype.empty() && config_.dtype == DType::kBF16);
  group_ = parallel::MakeSingleGroup("single");
  model::DecoderOptions options;
  options.dtype = bf16 ? at::kBFloat16 : at::kFloat;
  decoder_ = std::make_unique<model::Decoder>(
      config_, parallel::TensorParallel{group_.get(), false}, options);
  parallel::GradBufferOptions storage;
  storage.dtype = options.dtype;
  storage.inference = true;
  storage_ = std::make_unique<parallel::GradBuffer>(decoder_->parameters(), *group_, *group_,
                                                    nullptr, storage);
  ThrowIfError(trainer::ImportWeights(directory, config_, model::Head::kVocabulary,
                                      decoder_->Table(0, 1, true)));
  const bool has_tokenizer = std::ifstream(directory + "/tokenizer.json").good();
  if (config_.vocab_size >= 259 && !has_tokenizer)
    tokenizer_ = ValueOrThrow(model::MakeTokenizer("bytes"));
}

rollout::Engine HfInference::MakeEngine(rollout::EngineOptions options) {
  options.tokenizer = tokenizer_.get();
  options.eos_token_ids.assign(stop_ids_.begin(), stop_ids_.end());
  return {*decoder_, *group_, options};
}

std::vector<InputRow> ReadInputRows(const std::string& path, const HfInference& model) {
  std::ifstream file(path);
  if (!file) throw Error(StatusCode::kNotFound, fmt::format("--input {}: cannot be opened", path));
  std::vector<InputRow> rows;
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (line.find_first_not_of(" \t\r") == std::string::npos) continue;
    InputRow row;
    row.where = fmt::format("{}:{}", path, number);
    row.json = ValueOrThrow(ParseJson(line, row.where));
    const auto fail = [&](const std::string& text) {
      throw Error(StatusCode::kInvalidData, row.where + ": " + text);
    };
    if (!row.json.is_object()) fail("expected an object a line");
    if (row.json.contains("input_ids")) {
      for (const Json& id : row.json["input_ids"]) {
        if (!id.is_number_integer()) fail("input_ids: expected integers, found " + id.dump());
        row.ids.push_back(id.get<int32_t>());
      }
    } else {
      const char* key = row.json.contains("text") ? "text" : "prompt";
      if (!row.json.contains(key)) fail("expected one of the keys input_ids, text, prompt");
      if (model.tokenizer() == nullptr)
        fail("this release has no tokenizer for the model; give input_ids");
      row.ids = model.tokenizer()->Encode(ValueOrThrow(GetString(row.json, key, row.where)));
    }
    if (row.ids.empty()) fail("no tokens");
    for (const int32_t id : row.ids) {
      if (id < 0 || id >= model.config().vocab_size) {
        fail(fmt::format("token {} is outside the model's vocabulary of {}", id,
                         model.config().vocab_size));
      }
    }
    rows.push_back(std::move(row));
  }
  if (rows.empty()) throw Error(StatusCode::kInvalidData, fmt::format("--input {}: no rows", path));
  return rows;
}

}  // namespace keel::tools
