#include "trainer/config/config_data.h"

#include <fmt/format.h>

#include <cmath>
#include <utility>

#include "common/options/schema.h"
#include "trainer/config/config.h"

namespace keel::trainer {

namespace {

void AddFileOptions(Config& config, options::Schema& schema) {
  DataSection& d = config.data;
  schema
      .Add("data.train_files", d.train_files,
           "JSON Lines (`.jsonl`), Parquet (`.parquet`) or plain text, lines and text also packed "
           "with "
           "gzip or Zstandard; for pre-training and SFT also folders of `keel data tokenize`, "
           "Megatron's `.idx`, nanoGPT's `.bin`.")
      .PerNode();
  schema.Add("data.val_files", d.val_files, "Likewise, for validation.").PerNode();
  schema
      .Add("data.sources", d.sources,
           "Instead of `train_files`: `[{path: a, weight: 3}, {path: b, weight: 1}]`, of which "
           "every "
           "stretch of samples has its share by weight, each in epochs of its own.")
      .PerNode();
  schema
      .Add("data.val_split", d.val_split,
           "Without `val_files`: the share of samples set apart for validation.")
      .Range(0, 0.5);
}

// How a row becomes tokens.
void AddTextOptions(Config& config, options::Schema& schema) {
  DataSection& d = config.data;
  schema.Add(
      "data.tokenizer", d.tokenizer,
      "What text of rows becomes tokens by. `bytes`: one token a byte, 259 tokens; `ids`: "
      "nothing, rows bring ids. null: the model's own: what its files say, `bytes` for a model of "
      "`model.config` or one that was trained so, else `ids`.");
  schema
      .Add("data.chat_template", d.chat_template,
           "What messages are written by: Jinja, a file of it, `chatml`, or the name of one of the "
           "model's. null: the model's own "
           "(`chat_template.jinja`, or `chat_template` of tokenizer_config.json).")
      .PerNode();
  schema.Add("data.apply_chat_template_kwargs", d.apply_chat_template_kwargs,
             "More that the template may read, such as `{enable_thinking: false}`; a row's own "
             "`chat_template_kwargs` and `enable_thinking` go before it.");
  schema.Add(
      "data.train_on", d.train_on,
      "SFT: which answers of a conversation are learnt: all of the assistant's messages, or the "
      "`last` alone.");
  schema.Add("data.text_key", d.text_key, "Key of plain text in a JSON line.");
  schema.Add("data.prompt_key", d.prompt_key, "Key of the prompt.");
  schema.Add("data.response_key", d.response_key, "Key of the response.");
  schema.Add("data.messages_key", d.messages_key, "Key of a list of {role, content}.");
}

void AddBatchOptions(Config& config, options::Schema& schema) {
  DataSection& d = config.data;
  schema
      .Add("data.max_length", d.max_length,
           "Inputs of the longest sequence: a document of one token more fits, since its last "
           "token is predicted and no input.")
      .Range(2)
      .Unit("tokens");
  schema.Add("data.truncation", d.truncation,
             "SFT rows that are longer: refuse the file, cut the end (`right`) or the beginning "
             "(`left`), or leave the row out (`skip`).");
  schema.Add(
      "data.packing", d.packing,
      "Pre-training and SFT: how documents become samples of `max_length`. `none`: each by "
      "itself; `stream`: all as one text, cut, attention across documents; `wrapped`: cut, each "
      "document attended to by itself; `best_fit`: whole documents that fill it best, likewise. "
      "null: `stream` for pre-training, `none` for SFT.");
  schema
      .Add("data.cache_dir", d.cache_dir,
           "A folder in which rows and text are tokenized once, by all ranks together, into shards "
           "that are read without loading them. null: into the memory of every rank, at every "
           "start.")
      .PerNode();
  schema
      .Add("data.train_batch_size", d.train_batch_size,
           "Sequences per optimizer step, over all ranks.")
      .Range(1)
      .Unit("sequences");
  schema
      .Add("data.micro_batch_size_per_gpu", d.micro_batch_size_per_gpu,
           "Sequences per forward and backward of a data-parallel rank.")
      .Range(1)
      .Unit("sequences");
  schema.Add("data.shuffle", d.shuffle, "A new order every epoch, from the seed.");
}

// What RL and DPO read of a row.
void AddRlRowOptions(Config& config, options::Schema& schema) {
  DataSection& d = config.data;
  schema
      .Add("data.max_prompt_length", d.max_prompt_length,
           "RL and DPO: tokens of the longest prompt; `truncation` says what becomes of a longer "
           "one.")
      .Range(1)
      .Unit("tokens");
  schema
      .Add("data.max_response_length", d.max_response_length,
           "RL: tokens that are generated at most; DPO: of the longest answer.")
      .OfSamples()
      .Range(1)
      .Unit("tokens");
  schema.Add("data.filter_overlong_prompts", d.filter_overlong_prompts,
             "Leave out rows with longer prompts, whatever `truncation` says.");
  schema.Add("data.reward_fn_key", d.reward_fn_key,
             "RL: key of the data source's name, by which `reward.type: auto` chooses the rule.");
  schema.Add(
      "data.answer_key", d.answer_key,
      "RL: key of the right answer; `ground_truth` and `reward_model.ground_truth` are known too.");
  schema
      .Add("data.max_response_length_key", d.max_response_length_key,
           "RL: key of a row's own bound on its responses, in tokens; more than "
           "`max_response_length` has no response. null: rows have none.")
      .OfSamples();
  schema.Add(
      "data.question_instruction", d.question_instruction,
      "RL: appended, after a space, to the text of rows of `question` and `answer`; an empty "
      "string appends nothing. null: where the rule `gsm8k` scores with `reward.method: strict`, "
      "verl's `Let's think step by step and output the final answer after \"####\".`");
  schema.Add("data.chosen_key", d.chosen_key, "DPO: key of the preferred answer.");
  schema.Add("data.rejected_key", d.rejected_key, "DPO: key of the rejected answer.");
}

}  // namespace

void AddDataOptions(Config& config, options::Schema& schema) {
  AddFileOptions(config, schema);
  AddTextOptions(config, schema);
  AddBatchOptions(config, schema);
  AddRlRowOptions(config, schema);
}

Result<std::vector<DataSource>> SourcesOf(const Config& config) {
  std::vector<DataSource> sources;
  for (size_t i = 0; i < config.data.sources.size(); ++i) {
    const Json& entry = config.data.sources[i];
    const auto refuse = [&](const std::string& text) {
      return Status(StatusCode::kConfig, fmt::format("data.sources[{}]: {}", i, text));
    };
    DataSource source;
    for (const auto& [key, value] : entry.items()) {
      if (key == "path" && value.is_string()) {
        source.path = value.get<std::string>();
      } else if (key == "weight" && value.is_number()) {
        source.weight = value.get<double>();
      } else {
        return refuse(fmt::format("{}: expected path: a string, and weight: a number", key));
      }
    }
    if (source.path.empty()) return refuse("path is missing");
    if (!(source.weight > 0) || !std::isfinite(source.weight) || source.weight > 1e9)
      return refuse(
          fmt::format("weight is {}, expected a number above 0 and at most 1e9", source.weight));
    sources.push_back(std::move(source));
  }
  double sum = 0;
  for (const DataSource& source : sources) sum += source.weight;
  for (size_t i = 0; i < sources.size(); ++i) {
    if (sources[i].weight / sum >= 1e-6) continue;
    return Status(StatusCode::kConfig,
                  fmt::format("data.sources[{}]: weight {} is less than a millionth of all weights "
                              "together",
                              i, sources[i].weight));
  }
  return sources;
}

std::vector<std::string> ValidateSources(const Config& c) {
  std::vector<std::string> problems;
  const bool lm = c.trainer.task == TaskKind::kPretrain || c.trainer.task == TaskKind::kSft;
  const auto lm_alone = [&](bool given, const char* key) {
    if (given && !lm)
      problems.push_back(fmt::format("{} is of trainer.task pretrain and sft alone", key));
  };
  lm_alone(!c.data.sources.empty(), "data.sources");
  lm_alone(c.data.packing.has_value(), "data.packing");
  if (c.data.cache_dir && c.data.cache_dir->empty())
    problems.push_back("data.cache_dir is empty: name a folder, or write null");
  if (c.data.sources.empty()) {
    if (c.data.train_files.empty())
      problems.push_back("data.train_files is empty: name at least one file");
    return problems;
  }
  const auto sources = SourcesOf(c);
  if (!sources.ok()) problems.push_back(sources.status().message());
  if (!c.data.train_files.empty())
    problems.push_back("data.train_files and data.sources are both given: give one");
  if (c.data.val_split > 0) {
    problems.push_back(
        "data.val_split would take other shares of data.sources than their weights: give "
        "data.val_files");
  }
  if (c.trainer.total_epochs) {
    problems.push_back(
        "trainer.total_epochs: each of data.sources has epochs of its own; give "
        "trainer.total_training_steps");
  }
  return problems;
}

}  // namespace keel::trainer
