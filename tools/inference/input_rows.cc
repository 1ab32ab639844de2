#include "tools/inference/input_rows.h"

#include <fmt/format.h>

#include <utility>

#include "trainer/data/row_reader.h"
#include "trainer/data/unread_keys.h"

namespace keel::tools {

namespace {

Result<std::vector<int32_t>> TokensOf(const Json& object, const InferenceModel& model,
                                      const std::string& where) {
  const Json tools = object.contains("tools") ? object["tools"] : Json();
  if (object.contains("input_ids")) {
    // What a row's labels say is learnt or not has no meaning here.
    KEEL_ASSIGN_OR_RETURN(
        trainer::TokenRow ids,
        trainer::ReadIds(object, {"input_ids", "attention_mask", "", "position_ids"}, where));
    return std::move(ids.tokens);
  }
  if (object.contains("messages")) return model.text().EncodeChat(object["messages"], tools, where);
  const char* key = object.contains("text") ? "text" : "prompt";
  if (!object.contains(key)) {
    return trainer::Malformed(where, "expected one of the keys input_ids, messages, text, prompt");
  }
  if (object[key].is_array()) return model.text().EncodeChat(object[key], tools, where);
  KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, key, where));
  return model.text().Encode(text, where);
}

}  // namespace

std::vector<InputRow> ReadInputRows(const std::string& path, const InferenceModel& model) {
  std::vector<InputRow> rows;
  const auto take = [&](const Json& object, const std::string& where) -> Status {
    if (!object.is_object()) return trainer::Malformed(where, "expected an object a line");
    using trainer::UnreadKeys;
    const auto form =
        object.contains("input_ids") ? UnreadKeys::Form::kIds : UnreadKeys::Form::kText;
    KEEL_RETURN_IF_ERROR(UnreadKeys::RefuseMedia(object, form, where));
    InputRow row{object, {}, where};
    KEEL_ASSIGN_OR_RETURN(row.ids, TokensOf(object, model, where));
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

Prompts PromptsOf(const std::vector<InputRow>& rows) {
  Prompts prompts;
  for (const InputRow& row : rows) prompts.push_back(row.ids);
  return prompts;
}

}  // namespace keel::tools
