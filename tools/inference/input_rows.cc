#include "tools/inference/input_rows.h"

#include <fmt/format.h>

#include <span>
#include <utility>

#include "common/json_builder.h"
#include "common/terminal.h"
#include "common/wire.h"
#include "trainer/data/files/table_rows.h"
#include "trainer/data/rows/chat_rows.h"
#include "trainer/data/rows/row_forms.h"
#include "trainer/data/rows/row_notes.h"
#include "trainer/data/rows/row_reader.h"

namespace keel::tools {

namespace {

using trainer::RowContext;
using trainer::RowNotes;

// What a row's tokens come from.
struct RowForm {
  const char* key;
  const char* response = nullptr;           // what follows it
  std::vector<std::string_view> read = {};  // these two, and what is read beside them
};

RowForm FormOf(const Json& object, const InputOptions& options, const RowContext& row) {
  if (object.contains("input_ids"))
    return {"input_ids", nullptr, {"input_ids", "attention_mask", "position_ids"}};
  RowForm form{"prompt"};
  for (const char* key : {"text", "messages"})
    if (object.contains(key)) form.key = key;
  form.read = {form.key};
  if (!object.contains(form.key)) return form;
  if (options.with_responses && form.key == std::string_view("prompt")) {
    for (const char* key : {"completion", "response"})
      if (object.contains(key)) form.response = key;
    if (form.response != nullptr) form.read.emplace_back(form.response);
  }
  if (trainer::IsIdList(object[form.key])) {
    form.read.emplace_back("attention_mask");
  } else if (object[form.key].is_array()) {
    const std::vector<std::string_view> more = trainer::ChatKeys(row.rules);
    form.read.insert(form.read.end(), more.begin(), more.end());
  }
  return form;
}

Result<std::vector<int32_t>> TokensOf(const Json& object, const RowForm& form,
                                      const InferenceModel& model, const RowContext& row) {
  if (object.contains("input_ids")) {
    // What a row's labels say is learnt or not has no meaning here.
    KEEL_ASSIGN_OR_RETURN(
        trainer::TokenRow ids,
        trainer::ReadIds(object, {"input_ids", "attention_mask", "", "position_ids"}, row.where));
    return std::move(ids.tokens);
  }
  const char* const key = form.key;
  if (object.contains("messages")) return model.text().EncodeRow(object[key], object, row);
  if (!object.contains(key)) {
    return trainer::Malformed(row.where,
                              "expected one of the keys input_ids, messages, text, prompt");
  }
  if (form.response != nullptr) {
    const Json both = trainer::JoinedMessages(object[key], object[form.response], row.rules);
    if (!both.is_null()) return model.text().EncodeRow(both, object, row);
    // An end stands where a text has one.
    KEEL_ASSIGN_OR_RETURN(
        trainer::TokenRow pair,
        trainer::PromptAndResponse(object, key, form.response, trainer::EndsTexts(row.rules), row));
    return std::move(pair.tokens);
  }
  if (trainer::IsIdList(object[key])) {
    KEEL_ASSIGN_OR_RETURN(trainer::TokenRow ids,
                          trainer::ReadIds(object, {key, "attention_mask", "", ""}, row.where));
    return std::move(ids.tokens);
  }
  if (object[key].is_array()) return model.text().EncodeRow(object[key], object, row);
  KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, key, row.where));
  return trainer::EncodeText(text, row);
}

Status ReadRow(const Json& given, const InputOptions& options, const InferenceModel& model,
               const RowContext& row, WireWriter* record) {
  if (!given.is_object()) return trainer::Malformed(row.where, "expected an object a line");
  Json changed;
  const Json& object = trainer::StandardRow(given, "messages", &changed);
  const auto kind = object.contains("input_ids") ? RowNotes::Form::kIds : RowNotes::Form::kText;
  KEEL_RETURN_IF_ERROR(RowNotes::RefuseMedia(object, kind, row.where));
  const RowForm form = FormOf(object, options, row);
  KEEL_RETURN_IF_ERROR(RowNotes::RefuseSetApart(object, form.read));
  KEEL_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, TokensOf(object, form, model, row));
  if (options.keeps_json) {  // and so written again, with all that JSON can say
    row.notes.CountLost(given, trainer::Lost::kOfTables);
    // What ids were made from may stand beside them.
    const bool are_ids = object.contains("input_ids") || trainer::IsIdList(object[form.key]);
    if (!are_ids) row.notes.CountUnshown(object, form.read);
  } else {
    row.notes.CountOthers(object, form.read);
  }
  if (ids.empty()) return trainer::Malformed(row.where, "no tokens");
  KEEL_RETURN_IF_ERROR(trainer::CheckTokens(ids, model.config().vocab_size, row.where));
  if (options.check) KEEL_RETURN_IF_ERROR(options.check(std::ssize(ids)).WithContext(row.where));
  record->Count(ids.size()).Pods(ids).Text(row.where);
  record->Text(options.keeps_json ? DumpRow(given) : "");
  return Status::Ok();
}

}  // namespace

InputRows::InputRows(const InputOptions& options, const InferenceModel& model)
    : records_(options.spill_folder) {
  const bool table = trainer::IsTable(options.path);
  RowNotes notes;
  WireWriter record;
  const auto take = [&](const Json& object, const std::string& where) -> Status {
    record.Clear();
    notes.CountRow();
    const RowContext row{model.source().text, where, notes, table};
    KEEL_RETURN_IF_ERROR(ReadRow(object, options, model, row, &record));
    begins_.push_back(begins_.back() + std::ssize(record.bytes()));
    return records_.Append(std::as_bytes(std::span(record.bytes())));
  };
  ThrowIfError(trainer::ReadJsonLines(options.path, trainer::InputKind::kFileOrStream, take)
                   .WithContext("--input"));
  if (const std::string warning = notes.Warning(options.path); !warning.empty())
    WriteStderr(fmt::format("keel: {}\n", warning));
  if (size() == 0)
    throw Error(StatusCode::kInvalidData, fmt::format("--input {}: no rows", options.path));
}

std::vector<std::byte> InputRows::Record(int64_t row) const {
  const auto begin = begins_.begin() + row;
  std::vector<std::byte> record(static_cast<size_t>(begin[1] - begin[0]));
  ThrowIfError(records_.Read(begin[0], record));
  return record;
}

InputRows::Row InputRows::Get(int64_t row) const {
  const std::vector<std::byte> record = Record(row);
  WireReader in(record);
  Row found;
  uint64_t ids = 0;
  std::string_view json;
  if (!in.U64(&ids) || !in.Pods(ids, &found.ids) || !in.Text(&found.where) || !in.View(&json) ||
      !in.AtEnd())
    throw Error(StatusCode::kInternal, fmt::format("row {}: a record that is no row", row));
  if (!json.empty()) found.json = ValueOrThrow(ParseRow(json, found.where));
  return found;
}

std::vector<int64_t> InputRows::NumTokens() const {
  std::vector<int64_t> tokens;
  for (int64_t row = 0; row < size(); ++row) tokens.push_back(std::ssize(Get(row).ids));
  return tokens;
}

}  // namespace keel::tools
