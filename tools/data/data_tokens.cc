#include "tools/data/data_tokens.h"

#include <fmt/format.h>
#include <unistd.h>

#include <algorithm>
#include <filesystem>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "common/clock.h"
#include "common/json_builder.h"
#include "common/progress.h"
#include "common/text.h"
#include "model/tokenizer/tokenizer.h"
#include "model/tokenizer/tokenizer_kind.h"
#include "tools/number_check.h"
#include "trainer/data/files/table_rows.h"
#include "trainer/data/rows/row_reader.h"
#include "trainer/data/tokenize.h"
#include "trainer/data/tokens/megatron_file.h"
#include "trainer/data/tokens/raw_ids_file.h"
#include "trainer/data/tokens/shard_folder.h"
#include "trainer/data/tokens/shard_format.h"
#include "trainer/inputs/model_source.h"

namespace keel::tools {

namespace {

struct TokenizeArguments {
  std::vector<std::string> files;
  std::string tokenizer;
  std::string output;
  int64_t threads = 0;  // 0: as many as the machine has
  int64_t part_megabytes = 64;
  int64_t vocab_size = 0;  // 0: the tokenizer's; of ids: no bound
  trainer::RowKeys keys;
  std::string chat_template, chat_arguments, train_on = "all_assistant";
};

// What rows become ids by, and what must live as long.
struct Rules {
  std::unique_ptr<model::Tokenizer> tokenizer;
  trainer::TextRules text;
  int64_t vocab_size = 0;
};

Rules OpenRules(const std::string& name, const trainer::TokenizerChoice& choice) {
  Rules rules;
  if (const auto kind = ParseName<model::TokenizerKind>(name)) {
    rules.tokenizer = model::MakeTokenizer(*kind);
    rules.text.tokenizer = rules.tokenizer.get();
    rules.text.ids_only = "--tokenizer is ids";
    rules.vocab_size = rules.tokenizer != nullptr ? rules.tokenizer->vocab_size() : 0;
    return rules;
  }
  // As a run with this model reads rows.
  trainer::ModelOptions options;
  options.path_key = "--tokenizer";
  options.tokenizer = choice;
  auto found = ValueOrThrow(trainer::OpenDirectoryTokenizer(name, options));
  for (const std::string& warning : found.fit.warnings) fmt::print("warning: {}\n", warning);
  rules.tokenizer = std::move(found.fit.tokenizer);
  rules.text = std::move(found.fit.text);
  rules.vocab_size = found.vocab_size;
  return rules;
}

void Tokenize(const TokenizeArguments& a) {
  trainer::TokenizerChoice choice;
  choice.chat.source = a.chat_template;
  choice.chat.train_on = ParseName<trainer::TrainOn>(a.train_on).value_or(choice.chat.train_on);
  if (!a.chat_arguments.empty()) {
    choice.chat.arguments = ValueOrThrow(ParseJson(a.chat_arguments, "--chat-template-kwargs"));
    if (!choice.chat.arguments.is_object())
      throw Error(StatusCode::kConfig, "--chat-template-kwargs: expected a JSON object");
  }
  const Rules rules = OpenRules(a.tokenizer, choice);
  trainer::TokenizeOptions options;
  options.plan.rows = {a.keys, rules.text, false};
  options.plan.vocab_size = a.vocab_size > 0 ? a.vocab_size : rules.vocab_size;
  options.plan.part_bytes = a.part_megabytes << 20;
  options.threads = static_cast<int>(
      a.threads > 0 ? a.threads : std::max<int64_t>(1, std::thread::hardware_concurrency()));
  Progress bar({"tokenize", 0, Progress::Unit::kBytes, "", STDERR_FILENO, &SystemClock()});
  options.progress = [&bar](const trainer::TokenizeProgress& progress) {
    bar.SetTotal(progress.total_bytes);
    bar.Set(progress.bytes);
  };
  const trainer::TokenPlan plan = ValueOrThrow(trainer::MakeTokenPlan(a.files, options.plan));
  const auto index = ValueOrThrow(trainer::Tokenize(plan, a.output, options));
  bar.Done();
  int64_t tokens = 0, documents = 0;
  for (const auto& shard : index.shards) {
    tokens += shard.tokens;
    documents += shard.documents;
  }
  for (const std::string& warning : index.warnings) fmt::print("warning: {}\n", warning);
  fmt::print("{}: {} tokens, {} documents, {} shards of {}-byte ids\n", Printable(a.output), tokens,
             documents, index.shards.size(), index.id_bytes);
}

struct InfoArguments {
  std::string path;
  bool verify = false;
  bool rows = false;
};

// A row of ids a document, as training data may bring them.
void PrintRows(const trainer::TokenStore& store) {
  std::vector<int32_t> ids;
  std::vector<uint8_t> learn;
  for (int64_t d = 0; d < store.documents(); ++d) {
    ids.resize(static_cast<size_t>(store.Begin(d + 1) - store.Begin(d)));
    learn.resize(ids.size());
    ThrowIfError(store.Read(store.Begin(d), ids, learn));
    Json row = {{"input_ids", ids}};
    if (std::find(learn.begin(), learn.end(), 0) != learn.end()) {
      for (size_t i = 0; i < ids.size(); ++i)
        if (learn[i] == 0) ids[i] = -100;
      row["labels"] = ids;
    }
    fmt::print("{}\n", row.dump());
  }
}

// Rows as they stand in the file, of a table with what is null in them.
void InfoOfRows(const InfoArguments& a) {
  int64_t rows = 0;
  const auto show = [&](const Json& row, const std::string&) {
    ++rows;
    if (a.rows) fmt::print("{}\n", DumpRow(row));
    return Status::Ok();
  };
  if (trainer::IsTable(a.path)) {
    const auto table = ValueOrThrow(trainer::OpenTable(a.path));
    for (Json row; ValueOrThrow(table->Next(&row));) ThrowIfError(show(row, ""));
  } else {
    ThrowIfError(trainer::ReadJsonLines(a.path, trainer::InputKind::kRegularFile, show));
  }
  if (!a.rows) fmt::print("{}: {} rows\n", Printable(a.path), rows);
}

void Info(const InfoArguments& a) {
  const std::string name = Printable(a.path);
  if (trainer::HoldsJsonLines(a.path)) return InfoOfRows(a);
  if (const auto prefix = trainer::MegatronFile::PrefixOf(a.path)) {
    const auto file = ValueOrThrow(trainer::MegatronFile::Open(*prefix));
    if (a.rows) return PrintRows(*file);
    fmt::print("{}: Megatron, {} tokens, {} documents; it has no checksums\n", name, file->tokens(),
               file->documents());
    return;
  }
  if (a.path.ends_with(".bin") && !std::filesystem::is_directory(a.path)) {
    const auto file = ValueOrThrow(trainer::RawIdsFile::Open(a.path));
    if (a.rows) return PrintRows(*file);
    fmt::print("{}: ids of 16 bits, {} tokens, one document; it has no checksums\n", name,
               file->tokens());
    return;
  }
  const auto folder = ValueOrThrow(trainer::ShardFolder::Open(a.path));
  const auto store = folder.tokens();
  const bool records = folder.index.id_bytes == trainer::kRecordIdBytes;
  if (a.rows && records) {
    throw Error(StatusCode::kUsage, fmt::format("--rows: {} holds prompts or pairs of answers as "
                                                "a run keeps them, and no documents",
                                                name));
  }
  if (a.rows) return PrintRows(*store);
  fmt::print("{}: {} {}, {} {} of {} rows, {} shards\n", name, store->tokens(),
             records ? "bytes" : "tokens", store->documents(), records ? "records" : "documents",
             folder.index.rows, folder.shards.size());
  fmt::print("tokenizer: {}, digest {}\n", Printable(folder.index.tokenizer),
             folder.index.tokenizer_digest.ToHex());
  if (!records) {
    fmt::print("ids: {} bytes each, largest {}; {}\n", folder.index.id_bytes,
               folder.index.largest_id,
               store->learns_all() ? "all are learnt" : "masks say which are learnt");
  }
  fmt::print("content: digest {}\n", store->digest().ToHex());
  for (const auto& file : folder.index.plan.value("files", Json::array()))
    fmt::print("made of: {}\n", Printable(file.dump(), 400));
  for (const std::string& warning : folder.index.warnings)
    fmt::print("warning: {}\n", Printable(warning, 1000));
  if (!a.verify) return;
  for (const auto& shard : folder.shards) ThrowIfError(shard->Verify());
  fmt::print("verified: every byte is what it was written as\n");
}

}  // namespace

void AddTokenizeCommand(CLI::App& data) {
  auto arguments = std::make_shared<TokenizeArguments>();
  CLI::App* tokenize = data.add_subcommand(
      "tokenize",
      "Make token shards, which training reads without loading. Run again after "
      "it was killed, it goes on; several at once share the work");
  tokenize->footer(
      "Examples:\n"
      "  keel data tokenize text.txt --tokenizer exported --out exported.tokens\n"
      "  keel data tokenize text.txt --tokenizer bytes --out text.tokens\n"
      "  keel train configs/pretrain_text.yaml 'data.train_files=[text.tokens]'");
  tokenize->add_option("FILES", arguments->files, "JSON Lines or text, packed or not")->required();
  tokenize->add_option("--tokenizer", arguments->tokenizer, "A model's directory, bytes, or ids")
      ->required();
  tokenize->add_option("--out", arguments->output, "Folder for the shards")->required();
  tokenize->add_option("--threads", arguments->threads, "0: one a processor")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{0}, int64_t{1024}));
  tokenize
      ->add_option("--part-megabytes", arguments->part_megabytes,
                   "Of JSON Lines, a shard; a packed file or a text is one")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{1} << 20));
  tokenize
      ->add_option("--vocab-size", arguments->vocab_size,
                   "With --tokenizer ids: refuse larger ids; 65536 or less makes 2-byte ids")
      ->check(AtLeast(0));
  tokenize->add_option("--text-key", arguments->keys.text, "As data.text_key")
      ->capture_default_str();
  tokenize->add_option("--prompt-key", arguments->keys.prompt, "As data.prompt_key")
      ->capture_default_str();
  tokenize->add_option("--response-key", arguments->keys.response, "As data.response_key")
      ->capture_default_str();
  tokenize->add_option("--messages-key", arguments->keys.messages, "As data.messages_key")
      ->capture_default_str();
  tokenize->add_option("--chat-template", arguments->chat_template, "As data.chat_template");
  tokenize->add_option("--chat-template-kwargs", arguments->chat_arguments,
                       "As data.apply_chat_template_kwargs, in JSON");
  tokenize->add_option("--train-on", arguments->train_on, "As data.train_on")
      ->capture_default_str()
      ->check(CLI::IsMember(AllNames<trainer::TrainOn>()));
  tokenize->callback([arguments] { Tokenize(*arguments); });
}

void AddInfoCommand(CLI::App& data) {
  auto arguments = std::make_shared<InfoArguments>();
  CLI::App* info =
      data.add_subcommand("info", "What a folder of token shards, or a file of rows, holds");
  info->footer(
      "Examples:\n"
      "  keel data info text.tokens\n"
      "  keel data info text.tokens --verify\n"
      "  keel data info text.tokens --rows > documents.jsonl");
  info->add_option("PATH", arguments->path,
                   "A folder of keel data tokenize, Megatron's .idx, or a file of rows")
      ->required();
  info->add_flag("--verify", arguments->verify, "Read all of it against its checksums");
  info->add_flag("--rows", arguments->rows,
                 "Print the documents instead, a JSON line of input_ids (and labels) each");
  info->callback([arguments] { Info(*arguments); });
}

}  // namespace keel::tools
