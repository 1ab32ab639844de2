#include "trainer/data/row_reader.h"

#include <fmt/format.h>

#include <fstream>
#include <sstream>

#include "common/json.h"

namespace keel::trainer {

Status Malformed(const std::string& where, const std::string& text) {
  return Status(StatusCode::kInvalidData, fmt::format("{}: {}", where, text));
}

namespace {

bool EndsWith(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Appends text; `learn` marks it.
void AppendText(TokenRow& row, const model::Tokenizer& tokenizer, std::string_view text,
                bool learn) {
  const std::vector<int32_t> tokens = tokenizer.Encode(text);
  row.tokens.insert(row.tokens.end(), tokens.begin(), tokens.end());
  row.learn.insert(row.learn.end(), tokens.size(), learn ? 1 : 0);
}

void AppendEnd(TokenRow& row, const model::Tokenizer& tokenizer, bool learn) {
  if (!tokenizer.eos()) return;
  row.tokens.push_back(*tokenizer.eos());
  row.learn.push_back(learn ? 1 : 0);
}

Result<TokenRow> FromIds(const Json& object, const model::Tokenizer& tokenizer,
                         const std::string& where) {
  const auto read = [&](const char* key, std::vector<int64_t>& out) -> Status {
    const Json& list = object.at(key);
    if (!list.is_array())
      return Malformed(where, fmt::format("{}: expected a list of integers", key));
    for (const Json& item : list) {
      if (!item.is_number_integer())
        return Malformed(where, fmt::format("{}: expected integers, found {}", key, item.dump()));
      out.push_back(item.get<int64_t>());
    }
    return Status::Ok();
  };
  std::vector<int64_t> ids;
  KEEL_RETURN_IF_ERROR(read("input_ids", ids));
  TokenRow row;
  for (const int64_t id : ids) {
    if (id < 0 || id >= (int64_t{1} << 31))
      return Malformed(where, fmt::format("input_ids: {} is no token id", id));
    row.tokens.push_back(static_cast<int32_t>(id));
  }
  row.learn.assign(row.tokens.size(), 1);
  if (object.contains("labels")) {
    std::vector<int64_t> labels;
    KEEL_RETURN_IF_ERROR(read("labels", labels));
    if (labels.size() != ids.size()) {
      return Malformed(
          where, fmt::format("labels: {} entries for {} input_ids", labels.size(), ids.size()));
    }
    for (size_t i = 0; i < labels.size(); ++i) {
      if (labels[i] != -100 && labels[i] != ids[i]) {
        return Malformed(where, fmt::format("labels: entry {} is {}, expected -100 or the token {}",
                                            i, labels[i], ids[i]));
      }
      row.learn[i] = labels[i] != -100 ? 1 : 0;
    }
  }
  static_cast<void>(tokenizer);
  return row;
}

Result<TokenRow> FromObject(const Json& object, const RowKeys& keys,
                            const model::Tokenizer& tokenizer, const std::string& where) {
  if (!object.is_object()) return Malformed(where, "expected an object a line");
  if (object.contains("input_ids")) return FromIds(object, tokenizer, where);
  if (object.contains(keys.messages))
    return RenderChat(object[keys.messages], tokenizer, where, keys.messages, false);
  const auto pair = [&](const std::string& prompt_key,
                        const std::string& response_key) -> Result<TokenRow> {
    TokenRow row;
    KEEL_ASSIGN_OR_RETURN(const std::string response, GetString(object, response_key, where));
    // verl's rows have a list of messages for the prompt.
    if (object[prompt_key].is_array()) {
      KEEL_ASSIGN_OR_RETURN(row,
                            RenderChat(object[prompt_key], tokenizer, where, prompt_key, true));
      row.learn.assign(row.tokens.size(), 0);
    } else {
      KEEL_ASSIGN_OR_RETURN(const std::string prompt, GetString(object, prompt_key, where));
      AppendText(row, tokenizer, prompt, false);
    }
    AppendText(row, tokenizer, response, true);
    AppendEnd(row, tokenizer, true);
    return row;
  };
  if (object.contains(keys.prompt) && object.contains(keys.response))
    return pair(keys.prompt, keys.response);
  if (object.contains("question") && object.contains("answer")) return pair("question", "answer");
  if (object.contains(keys.text)) {
    KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(object, keys.text, where));
    TokenRow row;
    AppendText(row, tokenizer, text, true);
    AppendEnd(row, tokenizer, true);
    return row;
  }
  return Malformed(
      where,
      fmt::format("expected one of the keys {}, {}, {} with {}, input_ids; data.*_key names others",
                  keys.text, keys.messages, keys.prompt, keys.response));
}

Status OpenData(const std::string& path, std::ifstream& file) {
  if (EndsWith(path, ".parquet")) {
    return Status(StatusCode::kInvalidData,
                  fmt::format("data file {0}: Parquet is not read; convert it once, with pandas: "
                              "pandas.read_parquet('{0}').to_json('rows.jsonl', orient='records', "
                              "lines=True)",
                              path));
  }
  file.open(path, std::ios::binary);
  if (!file || file.peek() == std::ifstream::traits_type::eof()) {
    if (!file.is_open()) {
      return Status(
          StatusCode::kNotFound,
          fmt::format("data file {}: cannot be opened; data.train_files and data.val_files "
                      "are relative to the directory that keel is started in",
                      path));
    }
    return Status(StatusCode::kInvalidData,
                  fmt::format("data file {}: is empty or no regular file", path));
  }
  return Status::Ok();
}

}  // namespace

Result<TokenRow> RenderChat(const Json& list, const model::Tokenizer& tokenizer,
                            const std::string& where, const std::string& key, bool open_answer) {
  if (!list.is_array() || list.empty())
    return Malformed(where, fmt::format("{}: expected a list of messages", key));
  TokenRow row;
  for (const Json& message : list) {
    KEEL_ASSIGN_OR_RETURN(const std::string role, GetString(message, "role", where + ": " + key));
    KEEL_ASSIGN_OR_RETURN(const std::string content,
                          GetString(message, "content", where + ": " + key));
    const bool answer = role == "assistant";
    AppendText(row, tokenizer, "<|im_start|>" + role + "\n", false);
    AppendText(row, tokenizer, content + "<|im_end|>", answer);
    AppendText(row, tokenizer, "\n", false);
  }
  if (open_answer) AppendText(row, tokenizer, "<|im_start|>assistant\n", false);
  return row;
}

Result<std::vector<int32_t>> PromptTokens(const Json& row, const std::string& key,
                                          const model::Tokenizer& tokenizer,
                                          const std::string& where) {
  std::vector<int32_t> tokens;
  if (row[key].is_array()) {
    KEEL_ASSIGN_OR_RETURN(TokenRow chat, RenderChat(row[key], tokenizer, where, key, true));
    tokens = std::move(chat.tokens);
  } else {
    KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(row, key, where));
    tokens = tokenizer.Encode(text);
  }
  if (!tokens.empty()) return tokens;
  return Status(StatusCode::kInvalidData, where + ": the prompt is empty");
}

Status CheckTokens(std::span<const int32_t> tokens, int64_t vocab_size, const std::string& where) {
  for (const int32_t token : tokens) {
    if (token < vocab_size) continue;
    return Status(StatusCode::kInvalidData,
                  fmt::format("{}: token {} is outside the model's vocabulary of {}; choose the "
                              "model's tokenizer or a larger vocab_size",
                              where, token, vocab_size));
  }
  return Status::Ok();
}

Status ReadJsonLines(
    const std::string& path,
    const std::function<Status(const Json& object, const std::string& where)>& take) {
  std::ifstream file;
  KEEL_RETURN_IF_ERROR(OpenData(path, file));
  std::string line;
  for (int64_t number = 1; std::getline(file, line); ++number) {
    if (number == 1 && line.compare(0, 3, "\xEF\xBB\xBF") == 0) line.erase(0, 3);
    if (!line.empty() && line.back() == '\r') line.pop_back();
    if (line.find_first_not_of(" \t") == std::string::npos) continue;
    const std::string where = fmt::format("{}:{}", path, number);
    KEEL_ASSIGN_OR_RETURN(const Json object, ParseJson(line, where));
    KEEL_RETURN_IF_ERROR(take(object, where));
  }
  return Status::Ok();
}

Status ReadRows(const std::string& path, const RowKeys& keys, const model::Tokenizer& tokenizer,
                const std::function<Status(TokenRow row, const std::string& where)>& take) {
  if (EndsWith(path, ".jsonl") || EndsWith(path, ".json")) {
    return ReadJsonLines(path, [&](const Json& object, const std::string& where) -> Status {
      KEEL_ASSIGN_OR_RETURN(TokenRow row, FromObject(object, keys, tokenizer, where));
      return take(std::move(row), where);
    });
  }
  std::ifstream file;
  KEEL_RETURN_IF_ERROR(OpenData(path, file));
  std::stringstream text;
  text << file.rdbuf();
  TokenRow row;
  AppendText(row, tokenizer, text.str(), true);
  AppendEnd(row, tokenizer, true);
  return take(std::move(row), path);
}

}  // namespace keel::trainer
