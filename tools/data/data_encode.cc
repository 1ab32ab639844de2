#include "tools/data/data_encode.h"

#include <fmt/format.h>

#include <functional>
#include <memory>
#include <string>
#include <utility>
#include <vector>

#include "common/json_builder.h"
#include "common/terminal.h"
#include "common/text.h"
#include "tools/row_output.h"
#include "trainer/data/files/table_rows.h"
#include "trainer/data/rows/chat_rows.h"
#include "trainer/data/rows/row_forms.h"
#include "trainer/data/rows/row_reader.h"
#include "trainer/inputs/model_source.h"

namespace keel::tools {

namespace {

struct Arguments {
  std::string tokenizer, input, output;
  std::string chat_template, chat_arguments;
  bool generation_prompt = false;
  bool mask = false;
  bool no_special_tokens = false;
  bool skip_special_tokens = false;
};

trainer::TokenizerFit OpenTokenizerOf(const Arguments& a) {
  trainer::ModelOptions options;
  options.path_key = "--tokenizer";
  // With a mask it is what training reads; else as transformers has it, and keel generate.
  options.tokenizer.chat.todays_date = !a.mask;
  options.tokenizer.chat.source = a.chat_template;
  if (!a.chat_arguments.empty()) {
    options.tokenizer.chat.arguments =
        ValueOrThrow(ParseJson(a.chat_arguments, "--chat-template-kwargs"));
    if (!options.tokenizer.chat.arguments.is_object())
      throw Error(StatusCode::kConfig, "--chat-template-kwargs: expected a JSON object");
  }
  auto found = ValueOrThrow(trainer::OpenDirectoryTokenizer(a.tokenizer, options));
  if (found.fit.tokenizer == nullptr)
    throw Error(StatusCode::kConfig, "--tokenizer: " + found.fit.text.ids_only);
  return std::move(found.fit);
}

// Writes what `turn` makes of each row, in order; nothing is left of a file that has a bad one.
void ForEachRow(
    const Arguments& a,
    const std::function<Status(const Json& row, const std::string& where, Json* out)>& turn) {
  ThrowIfError(CheckApart({"--output", a.output}, {"--input", a.input}));
  RowOutput out = ValueOrThrow(RowOutput::Open("--output", a.output));
  size_t rows = 0;
  const auto take = [&](const Json& row, const std::string& where) -> Status {
    if (!row.is_object()) return trainer::Malformed(where, "expected an object a line");
    Json turned = row;
    KEEL_RETURN_IF_ERROR(turn(row, where, &turned));
    return out.Put(rows++, DumpRow(turned));
  };
  ThrowIfError(trainer::ReadJsonLines(a.input, trainer::InputKind::kFileOrStream, take));
  ThrowIfError(out.Finish());
  WriteStderr(fmt::format("{}: {} rows\n", Printable(a.output), rows));
}

// What stands beside ids of before, and would be taken for what belongs to the new ones.
Status RefuseOlderValues(const Json& row, const std::string& where) {
  for (const char* key : {"attention_mask", "position_ids", "labels"}) {
    if (!row.contains(key) || row[key].is_null()) continue;
    return trainer::Malformed(
        where, fmt::format("{}: belongs to other tokens than the row gets now: leave it out", key));
  }
  return Status::Ok();
}

void Encode(const Arguments& a) {
  const trainer::TokenizerFit fit = OpenTokenizerOf(a);
  trainer::RowNotes notes;
  const bool table = trainer::IsTable(a.input);
  const auto encode = [&](const Json& given, const std::string& where, Json* out) -> Status {
    const trainer::RowContext context{fit.text, where, notes, table};
    notes.CountRow();
    notes.CountLost(given, trainer::Lost::kOfTables);  // of the keys that are written again
    Json changed;
    const Json& row = trainer::StandardRow(given, "messages", &changed);
    KEEL_RETURN_IF_ERROR(RefuseOlderValues(row, where));
    KEEL_RETURN_IF_ERROR(
        trainer::RowNotes::RefuseMedia(row, trainer::RowNotes::Form::kText, where));
    if (row.contains("messages")) {
      std::vector<std::string_view> read = trainer::ChatKeys(context.rules);
      read.emplace_back("messages");
      KEEL_RETURN_IF_ERROR(trainer::RowNotes::RefuseSetApart(row, read));
      KEEL_ASSIGN_OR_RETURN(const trainer::Chat chat,
                            trainer::ReadChat(row["messages"], row, context, "messages"));
      if (a.generation_prompt) {
        KEEL_ASSIGN_OR_RETURN((*out)["input_ids"], trainer::ChatPrompt(chat, context));
        return Status::Ok();
      }
      KEEL_ASSIGN_OR_RETURN(trainer::TokenRow tokens, a.mask ? trainer::ChatRow(chat, 0, context)
                                                             : trainer::ChatText(chat, context));
      (*out)["input_ids"] = std::move(tokens.tokens);
      if (a.mask) (*out)["assistant_mask"] = std::move(tokens.learn);
      return Status::Ok();
    }
    if (!row.contains("text"))
      return trainer::Malformed(where, "expected the key text, or messages");
    KEEL_RETURN_IF_ERROR(trainer::RowNotes::RefuseSetApart(row, {"text"}));
    KEEL_ASSIGN_OR_RETURN(const std::string text, GetString(row, "text", where));
    KEEL_ASSIGN_OR_RETURN((*out)["input_ids"], a.no_special_tokens
                                                   ? trainer::EncodeMore(text, context)
                                                   : trainer::EncodeText(text, context));
    return Status::Ok();
  };
  ForEachRow(a, encode);
  if (const std::string warning = notes.Warning(a.input); !warning.empty())
    WriteStderr(fmt::format("keel: {}\n", warning));
}

void Decode(const Arguments& a) {
  const trainer::TokenizerFit fit = OpenTokenizerOf(a);
  model::DecodeOptions options;
  options.skip_special_tokens = a.skip_special_tokens;
  ForEachRow(a, [&](const Json& row, const std::string& where, Json* out) -> Status {
    if (!row.contains("input_ids")) return trainer::Malformed(where, "expected the key input_ids");
    KEEL_RETURN_IF_ERROR(trainer::RowNotes::RefuseSetApart(row, {"input_ids"}));
    KEEL_ASSIGN_OR_RETURN(const trainer::TokenRow ids,
                          trainer::ReadIds(row, {"input_ids", "", "", ""}, where));
    KEEL_RETURN_IF_ERROR(trainer::CheckTokens(ids.tokens, fit.tokenizer->vocab_size(), where));
    (*out)["text"] = fit.tokenizer->Decode(ids.tokens, options);
    return Status::Ok();
  });
}

std::shared_ptr<Arguments> AddCommon(CLI::App* command, const char* input, const char* output) {
  auto arguments = std::make_shared<Arguments>();
  command->add_option("--tokenizer", arguments->tokenizer, "A model's directory")->required();
  command->add_option("--input", arguments->input, input)->required();
  command->add_option("--output", arguments->output, output)->required();
  return arguments;
}

}  // namespace

void AddEncodeCommand(CLI::App& data) {
  CLI::App* encode =
      data.add_subcommand("encode", "Rows of text or messages as token ids, row by row");
  encode->footer(
      "Examples:\n"
      "  keel data encode --tokenizer exported --input rows.jsonl --output encoded.jsonl\n"
      "  keel data encode --tokenizer exported --input chats.jsonl --output encoded.jsonl --mask\n"
      "  keel data encode --tokenizer exported --input chats.jsonl --output encoded.jsonl "
      "--chat-template chatml");
  const auto arguments =
      AddCommon(encode, "JSON Lines with text or messages, or Parquet", "The rows with input_ids");
  encode->add_flag("--generation-prompt", arguments->generation_prompt,
                   "Of messages: open the answer that comes next");
  encode
      ->add_flag("--mask", arguments->mask,
                 "Of messages: add assistant_mask, 1 where SFT learns the token")
      ->excludes("--generation-prompt");
  encode->add_flag("--no-special-tokens", arguments->no_special_tokens,
                   "Of text: leave out what the tokenizer puts around one");
  encode->add_option("--chat-template", arguments->chat_template, "As data.chat_template");
  encode->add_option("--chat-template-kwargs", arguments->chat_arguments,
                     "As data.apply_chat_template_kwargs, in JSON");
  encode->callback([arguments] { Encode(*arguments); });
}

void AddDecodeCommand(CLI::App& data) {
  CLI::App* decode = data.add_subcommand("decode", "Rows of token ids as text, row by row");
  decode->footer(
      "Examples:\n"
      "  keel data decode --tokenizer exported --input ids.jsonl --output texts.jsonl\n"
      "  keel data decode --tokenizer exported --input ids.jsonl --output texts.jsonl "
      "--skip-special-tokens\n"
      "  keel data decode --tokenizer exported --input ids.jsonl --output -");
  const auto arguments =
      AddCommon(decode, "JSON Lines with input_ids, or Parquet", "The rows with text");
  decode->add_flag("--skip-special-tokens", arguments->skip_special_tokens,
                   "Leave special tokens out of the text");
  decode->callback([arguments] { Decode(*arguments); });
}

}  // namespace keel::tools
