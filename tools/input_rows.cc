#include "tools/input_rows.h"

#include <fmt/format.h>

#include <utility>

#include "trainer/data/row_reader.h"

namespace keel::tools {

Result<std::vector<int32_t>> ChatTokens(const Json& messages, const InferenceModel& model,
                                        const std::string& where) {
  trainer::UnreadKeys unread;
  const trainer::RowContext context{model.text(), where, unread};
  KEEL_ASSIGN_OR_RETURN(trainer::TokenRow row,
                        trainer::RenderChat(messages, context, "messages", true));
  return std::move(row.tokens);
}

namespace {

Result<std::vector<int32_t>> TokensOf(const Json& object, const InferenceModel& model,
                                      const trainer::RowContext& context) {
  const std::string& where = context.where;
  if (object.contains("input_ids")) {
    // What a row's labels say is learnt or not has no meaning here.
    KEEL_ASSIGN_OR_RETURN(
        trainer::TokenRow ids,
        trainer::ReadIds(object, {"input_ids", "attention_mask", "", "position_ids"}, where));
    return std::move(ids.tokens);
  }
  if (object.contains("messages")) return ChatTokens(object["messages"], model, where);
  const char* key = object.contains("text") ? "text" : "prompt";
  if (!object.contains(key)) {
    return trainer::Malformed(where, "expected one of the keys input_ids, messages, text, prompt");
  }
  if (object[key].is_array()) return ChatTokens(object[key], model, where);
  KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, key, where));
  return trainer::EncodeText(text, context);
}

}  // namespace

std::vector<InputRow> ReadInputRows(const std::string& path, const InferenceModel& model) {
  std::vector<InputRow> rows;
  trainer::UnreadKeys unread;  // of rows that go to the output as they are
  const auto take = [&](const Json& object, const std::string& where) -> Status {
    const trainer::RowContext context{model.text(), where, unread};
    if (!object.is_object()) return trainer::Malformed(where, "expected an object a line");
    InputRow row{object, {}, where};
    KEEL_ASSIGN_OR_RETURN(row.ids, TokensOf(object, model, context));
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
