#include "trainer/data/rows/row_reader.h"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "common/json_builder.h"
#include "common/text.h"
#include "trainer/data/files/data_file.h"
#include "trainer/data/files/table_rows.h"
#include "trainer/data/rows/row_forms.h"

namespace keel::trainer {

namespace {

// TRL's name of the response.
constexpr const char* kCompletion = "completion";

void AppendTokens(TokenRow& row, const std::vector<int32_t>& tokens, bool learn) {
  row.tokens.insert(row.tokens.end(), tokens.begin(), tokens.end());
  row.learn.insert(row.learn.end(), tokens.size(), learn ? 1 : 0);
}

// A document: all of it is learnt, and its end.
Result<TokenRow> Document(const std::string& text, const RowContext& context) {
  KEEL_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, EncodeText(text, context));
  EndText(context.rules, &tokens);
  TokenRow row;
  AppendTokens(row, tokens, true);
  return row;
}

// What the prompt of a key is worth, if only nothing.
Result<std::vector<int32_t>> PromptPart(const Json& object, const std::string& key,
                                        const RowContext& context,
                                        Follows follows = Follows::kMoreOfIt) {
  if (IsIdList(object[key])) {
    KEEL_ASSIGN_OR_RETURN(TokenRow ids,
                          ReadIds(object, {key, "attention_mask", "", ""}, context.where));
    return std::move(ids.tokens);
  }
  // verl's rows have a list of messages for the prompt.
  if (object[key].is_array()) {
    KEEL_ASSIGN_OR_RETURN(const Chat chat, ReadChat(object[key], object, context, key));
    return ChatPrompt(chat, context, follows);
  }
  KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, key, context.where));
  return EncodePrompt(text, context);
}

// A conversation of which the answer to the first `prompt_size` messages is learnt.
Result<TokenRow> FromMessages(const Json& messages, size_t prompt_size, const Json& row,
                              const std::string& key, const RowContext& context) {
  KEEL_ASSIGN_OR_RETURN(const Chat chat, ReadChat(messages, row, context, key));
  return ChatRow(chat, prompt_size, context);
}

// The row's keys beside those that are read as `keys`, and what goes to a template with them.
Status LookAtText(const Json& object, std::vector<std::string_view> keys,
                  const RowContext& context) {
  const auto more = ChatKeys(context.rules);
  keys.insert(keys.end(), more.begin(), more.end());
  return context.notes.Look(object, keys, RowNotes::Form::kText, context.where);
}

Result<TokenRow> FromPair(const Json& object, const std::string& prompt_key,
                          const std::string& response_key, const RowContext& context) {
  using Form = RowNotes::Form;
  const Json &given = object[prompt_key], &answer = object[response_key];
  if (const Json messages = JoinedMessages(given, answer, context.rules); !messages.is_null()) {
    KEEL_RETURN_IF_ERROR(LookAtText(object, {prompt_key, response_key}, context));
    return FromMessages(messages, given.size(), object, prompt_key, context);
  }
  const bool ids = IsIdList(given) && IsIdList(answer);
  KEEL_RETURN_IF_ERROR(context.notes.Look(object, {prompt_key, response_key},
                                          ids ? Form::kIds : Form::kText, context.where));
  return PromptAndResponse(object, prompt_key, response_key, true, context);
}

// A question is asked as a message where the model is one that answers messages.
Result<TokenRow> FromQuestion(const Json& object, const std::string& asks,
                              const std::string& answers, const RowContext& context) {
  const Json &question = object[asks], &answer = object[answers];
  if (!AsksInMessages(context.rules) || !question.is_string() || !answer.is_string())
    return FromPair(object, asks, answers, context);
  KEEL_RETURN_IF_ERROR(LookAtText(object, {asks, answers}, context));
  return FromMessages(Json::array({ChatMessage("user", question.get<std::string>()),
                                   ChatMessage("assistant", answer.get<std::string>())}),
                      1, object, asks, context);
}

// As Alpaca's rows are: what the instruction is about, where there is something, follows it on a
// line of its own, as LLaMA-Factory joins them.
Result<TokenRow> FromInstruction(const Json& object, const RowContext& context) {
  const auto said = [&](const char* key) {
    return object.contains(key) && !object[key].empty() && object[key] != "";
  };
  if (said("history")) {
    return Malformed(context.where,
                     "history: earlier turns are not read beside instruction: give messages");
  }
  if (!said("input")) {
    Json alone = object;
    alone.erase("input");
    return FromQuestion(alone, "instruction", "output", context);
  }
  KEEL_ASSIGN_OR_RETURN(const std::string asked, GetString(object, "instruction", context.where));
  KEEL_ASSIGN_OR_RETURN(const std::string input, GetString(object, "input", context.where));
  Json joined = object;
  joined["instruction"] = asked + "\n" + input;
  joined.erase("input");
  return FromQuestion(joined, "instruction", "output", context);
}

Result<TokenRow> FromObject(const Json& given, const RowOptions& options,
                            const RowContext& context) {
  Json changed;
  const Json& object = StandardRow(given, options.keys.messages, &changed);
  using Form = RowNotes::Form;
  const RowKeys& keys = options.keys;
  if (!object.is_object()) return Malformed(context.where, "expected an object a line");
  if (object.contains("input_ids")) {
    const IdKeys ids;
    KEEL_RETURN_IF_ERROR(context.notes.Look(object, ids.All(), Form::kIds, context.where));
    KEEL_ASSIGN_OR_RETURN(TokenRow row, ReadIds(object, ids, context.where));
    if (options.learns_all && std::find(row.learn.begin(), row.learn.end(), 0) != row.learn.end())
      context.notes.Count(ids.labels);
    return row;
  }
  if (object.contains(keys.messages)) {
    KEEL_RETURN_IF_ERROR(LookAtText(object, {keys.messages}, context));
    KEEL_ASSIGN_OR_RETURN(const Chat chat,
                          ReadChat(object[keys.messages], object, context, keys.messages));
    if (!options.learns_all) return ChatRow(chat, 0, context);
    // Which of it are answers need not be told, nor be such that it can be.
    KEEL_ASSIGN_OR_RETURN(TokenRow row, ChatText(chat, context));
    row.learn.assign(row.tokens.size(), 1);
    return row;
  }
  if (object.contains(keys.prompt) && object.contains(keys.response))
    return FromPair(object, keys.prompt, keys.response, context);
  if (object.contains(keys.prompt) && object.contains(kCompletion))
    return FromPair(object, keys.prompt, kCompletion, context);
  if (object.contains("question") && object.contains("answer"))
    return FromQuestion(object, "question", "answer", context);
  if (object.contains(keys.text)) {
    KEEL_RETURN_IF_ERROR(context.notes.Look(object, {keys.text}, Form::kText, context.where));
    KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, keys.text, context.where));
    return Document(text, context);
  }
  if (object.contains("instruction") && object.contains("output"))
    return FromInstruction(object, context);
  return Malformed(
      context.where,
      fmt::format("expected one of the keys {}, {}, {} with {}, input_ids; data.*_key names others",
                  keys.text, keys.messages, keys.prompt, keys.response));
}

bool IsNamed(const DataFile& file, std::initializer_list<std::string_view> ends) {
  return std::any_of(ends.begin(), ends.end(),
                     [&](std::string_view end) { return file.inner_path().ends_with(end); });
}

// What is called text but is a table or rows would be learnt as it is written.
Status CheckIsProse(const DataFile& file) {
  if (IsNamed(file, {".csv", ".tsv"})) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: tables are not read; convert it once, with pandas: "
                              "pandas.read_csv(...).to_json('rows.jsonl', orient='records', "
                              "lines=True)",
                              file.name()));
  }
  const std::string_view text = Trim(file.head());
  const bool list = text.starts_with('[');
  const std::string_view first = list ? Trim(text.substr(1)) : text;
  if (first.starts_with('{') && Trim(first.substr(1)).starts_with('"')) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: begins with a JSON object, but its name does not end in .jsonl; "
                              "name it so (.jsonl.gz, .jsonl.zst) if its lines are rows, or put "
                              "the text into a row: {{\"text\": ...}}",
                              file.name()));
  }
  return Status::Ok();
}

Status ReadLines(DataFile& file, const std::string& path, int64_t first_line,
                 const std::function<Status(const Json&, const std::string&)>& take) {
  std::string line;
  for (int64_t number = first_line;; ++number) {
    KEEL_ASSIGN_OR_RETURN(const bool more, file.ReadLine(&line));
    if (!more) return Status::Ok();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    Result<Json> object = ParseRow(line, where);
    const std::string_view text = Trim(line);
    if (!object.ok() && number == 1 &&
        (text == "{" || (text.starts_with('[') && !text.ends_with(']')))) {
      return Malformed(where,
                       "a JSON document over several lines; expected an object a line, which jq -c "
                       "'.[]' makes of a list");
    }
    KEEL_RETURN_IF_ERROR(object.status());
    if (number == 1 && object->is_array()) {
      return Malformed(where,
                       "a list of all rows; expected an object a line, which jq -c '.[]' makes of "
                       "a list");
    }
    KEEL_RETURN_IF_ERROR(take(*object, where));
  }
}

// The rows of a table, which count as lines. A member that is null says that there is none: such a
// file has every member in every row.
Status ReadTable(const std::string& path,
                 const std::function<Status(const Json&, const std::string&)>& take) {
  KEEL_ASSIGN_OR_RETURN(const std::unique_ptr<TableRows> rows, OpenTable(path));
  Json row;
  for (int64_t number = 1;; ++number) {
    KEEL_ASSIGN_OR_RETURN(const bool more, rows->Next(&row));
    if (!more) return Status::Ok();
    for (auto member = row.begin(); member != row.end();)
      member = member->is_null() ? row.erase(member) : std::next(member);
    KEEL_RETURN_IF_ERROR(take(row, fmt::format("{}:{}", path, number)));
  }
}

}  // namespace

Result<std::vector<int32_t>> PromptTokens(const Json& object, const std::string& key,
                                          const RowContext& row, Follows follows) {
  KEEL_ASSIGN_OR_RETURN(std::vector<int32_t> tokens, PromptPart(object, key, row, follows));
  if (!tokens.empty()) return tokens;
  return Malformed(row.where, "the prompt is empty");
}

Json JoinedMessages(const Json& prompt, const Json& response, const TextRules& rules) {
  const bool said = response.is_string() && AsksInMessages(rules);
  if (!AreMessages(prompt) || !(said || AreMessages(response))) return nullptr;
  Json messages = prompt;
  if (said) {
    messages.push_back(ChatMessage("assistant", response.get<std::string>()));
  } else {
    messages.insert(messages.end(), response.begin(), response.end());
  }
  return messages;
}

Result<TokenRow> PromptAndResponse(const Json& object, const std::string& prompt_key,
                                   const std::string& response_key, bool ends,
                                   const RowContext& context) {
  if (IsIdList(object[prompt_key]) && object.contains("attention_mask")) {
    return Malformed(context.where,
                     fmt::format("attention_mask beside {} and {}, of which it could mask either: "
                                 "give ids without padding",
                                 prompt_key, response_key));
  }
  TokenRow row;
  KEEL_ASSIGN_OR_RETURN(const auto prompt, PromptPart(object, prompt_key, context));
  AppendTokens(row, prompt, false);
  if (IsIdList(object[response_key])) {
    KEEL_ASSIGN_OR_RETURN(const TokenRow response,
                          ReadIds(object, {response_key, "", "", ""}, context.where));
    AppendTokens(row, response.tokens, true);
    return row;
  }
  KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, response_key, context.where));
  const Json& asked = object[prompt_key];
  KEEL_ASSIGN_OR_RETURN(
      std::vector<int32_t> response,
      asked.is_string() ? EncodeAnswer(asked.get_ref<const std::string&>(), prompt, text, context)
                        : EncodeMore(text, context));
  if (ends) EndText(context.rules, &response);
  AppendTokens(row, response, true);
  return row;
}

Status ReadJsonLines(
    const std::string& path, InputKind kind,
    const std::function<Status(const Json& object, const std::string& where)>& take) {
  if (IsTable(path)) return ReadTable(path, take);
  KEEL_ASSIGN_OR_RETURN(DataFile file, DataFile::Open(path, kind));
  return ReadLines(file, path, 1, take);
}

Status ReadJsonRows(const std::string& path, const std::optional<LineRange>& range,
                    const TextRules& rules, RowNotes* notes,
                    const std::function<Status(const Json& object, const RowContext& row)>& take) {
  const bool table = IsTable(path);
  const auto count = [&](const Json& object, const std::string& where) {
    notes->CountRow();
    return take(object, {rules, where, *notes, table});
  };
  if (table) return ReadTable(path, count);
  KEEL_ASSIGN_OR_RETURN(DataFile file, range ? DataFile::OpenRange(path, range->begin, range->end)
                                             : DataFile::Open(path));
  return ReadLines(file, path, range ? range->first_line : 1, count);
}

Status ReadRows(const std::string& path, const RowOptions& options,
                std::vector<std::string>* warnings,
                const std::function<Status(TokenRow row, const std::string& where)>& take) {
  RowNotes notes;
  KEEL_RETURN_IF_ERROR(ReadSomeRows(path, std::nullopt, options, &notes, take));
  if (std::string warning = notes.Warning(path); !warning.empty())
    warnings->push_back(std::move(warning));
  return Status::Ok();
}

bool HoldsJsonLines(const std::string& path) {
  if (IsTable(path)) return true;
  std::string_view name = path;
  for (const std::string_view end : {".gz", ".zst", ".zstd"}) {
    if (name.ends_with(end)) {
      name.remove_suffix(end.size());
      break;
    }
  }
  return name.ends_with(".jsonl") || name.ends_with(".ndjson") || name.ends_with(".jsonlines") ||
         name.ends_with(".json");
}

Status ReadSomeRows(const std::string& path, const std::optional<LineRange>& range,
                    const RowOptions& options, RowNotes* notes,
                    const std::function<Status(TokenRow row, const std::string& where)>& take) {
  const bool table = IsTable(path);
  const auto take_object = [&](const Json& object, const std::string& where) -> Status {
    notes->CountRow();
    KEEL_ASSIGN_OR_RETURN(TokenRow row,
                          FromObject(object, options, {options.rules, where, *notes, table}));
    return take(std::move(row), where);
  };
  if (table) return ReadTable(path, take_object);
  KEEL_ASSIGN_OR_RETURN(DataFile file, range ? DataFile::OpenRange(path, range->begin, range->end)
                                             : DataFile::Open(path));
  if (HoldsJsonLines(path))
    return ReadLines(file, path, range ? range->first_line : 1, take_object);
  KEEL_RETURN_IF_ERROR(CheckIsProse(file));
  std::string text;
  KEEL_RETURN_IF_ERROR(file.ReadRest(&text));
  KEEL_ASSIGN_OR_RETURN(TokenRow row, Document(text, {options.rules, path, *notes}));
  return take(std::move(row), path);
}

}  // namespace keel::trainer
