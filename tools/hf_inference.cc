#include "tools/hf_inference.h"

#include <fmt/format.h>

#include <utility>

#include "common/host_memory.h"
#include "trainer/config/choices.h"
#include "trainer/data/row_reader.h"
#include "trainer/engine/memory_forecast.h"

namespace keel::tools {

HfInference::HfInference(const std::string& directory, const std::string& dtype) {
  trainer::ModelOptions how;
  how.path_key = "--model";
  source_ = ValueOrThrow(trainer::ResolveModel(directory, Json::object(), DType::kF32, how));
  const auto wanted = ParseName<trainer::WeightDtype>(dtype);
  const bool bf16 =
      wanted ? *wanted == trainer::WeightDtype::kBfloat16 : config().dtype == DType::kBF16;
  const trainer::MemoryForecast forecast = trainer::ForecastInference(config(), bf16 ? 2 : 4, 0);
  ThrowIfError(
      trainer::CheckMemory(forecast, ReadHostMemory(), 1, false).status().WithContext(directory));
  group_ = parallel::MakeSingleGroup("single");
  model::DecoderOptions options;
  options.dtype = bf16 ? at::kBFloat16 : at::kFloat;
  decoder_ = std::make_unique<model::Decoder>(
      config(), parallel::TensorParallel{group_.get(), false}, options);
  weights_ = std::make_unique<parallel::WeightStore>(
      decoder_->parameters(), parallel::WeightStoreOptions{options.dtype, at::kCPU});
  ThrowIfError(trainer::ImportWeights(directory, config(), model::Head::kVocabulary,
                                      weights_->Table({}, true)));
}

rollout::Engine HfInference::MakeEngine(rollout::EngineOptions options) {
  options.tokenizer = tokenizer();
  options.eos_token_ids.assign(stop_ids().begin(), stop_ids().end());
  return {*decoder_, *group_, options};
}

std::vector<InputRow> ReadInputRows(const std::string& path, const HfInference& model) {
  std::vector<InputRow> rows;
  trainer::UnreadKeys unread;  // of rows that go to the output as they are
  const auto take = [&](const Json& object, const std::string& where) -> Status {
    const trainer::RowContext context{model.text(), where, unread};
    InputRow row{object, {}, where};
    if (!object.is_object()) return trainer::Malformed(where, "expected an object a line");
    if (object.contains("input_ids")) {
      // What a row's labels say is learnt or not has no meaning here.
      KEEL_ASSIGN_OR_RETURN(
          trainer::TokenRow ids,
          trainer::ReadIds(object, {"input_ids", "attention_mask", "", "position_ids"}, where));
      row.ids = std::move(ids.tokens);
    } else {
      const char* key = object.contains("text") ? "text" : "prompt";
      if (!object.contains(key))
        return trainer::Malformed(where, "expected one of the keys input_ids, text, prompt");
      KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, key, where));
      KEEL_ASSIGN_OR_RETURN(row.ids, trainer::EncodeText(text, context));
    }
    if (row.ids.empty()) return trainer::Malformed(where, "no tokens");
    KEEL_RETURN_IF_ERROR(trainer::CheckTokens(row.ids, model.config().vocab_size, where));
    rows.push_back(std::move(row));
    return Status::Ok();
  };
  ThrowIfError(
      trainer::ReadJsonLines(path, trainer::InputKind::kFileOrStream, take).WithContext("--input"));
  if (rows.empty()) throw Error(StatusCode::kInvalidData, fmt::format("--input {}: no rows", path));
  return rows;
}

}  // namespace keel::tools
