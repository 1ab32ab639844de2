// keel data: make writes tasks whose answers can be verified; data_tokens.h has the others.

#include <fmt/format.h>

#include <cstdio>
#include <filesystem>
#include <memory>
#include <string>
#include <system_error>

#include "common/text.h"
#include "rewards/task_maker.h"
#include "tools/command.h"
#include "tools/data/data_encode.h"
#include "tools/data/data_show.h"
#include "tools/data/data_tokens.h"
#include "tools/number_check.h"
#include "tools/row_output.h"

namespace keel::tools {

namespace {

struct DataArguments {
  std::string task;
  std::string output;
  std::string form = "rl";
  int64_t count = 1000;
  int64_t first = 0;
  int64_t size = 0;  // 0: the task's own
  uint64_t seed = 1;
  bool messages = false;
  bool force = false;
};

void Make(const DataArguments& a) {
  namespace fs = std::filesystem;
  const int64_t size = a.size > 0 ? a.size : rewards::DefaultTaskSize(a.task);
  ThrowIfError(rewards::CheckTask(a.task, size));
  const auto form = ParseName<rewards::TaskForm>(a.form).value_or(rewards::TaskForm::kRl);
  std::error_code error;
  if (!a.force && fs::exists(fs::symlink_status(a.output, error)) && !fs::is_other(a.output, error))
    throw Error(StatusCode::kAlreadyExists,
                fmt::format("{} is there already: choose another name, or give --force", a.output));
  RowOutput out = ValueOrThrow(RowOutput::Open("--out", a.output));
  for (int64_t i = 0; i < a.count; ++i) {
    const auto index = static_cast<uint64_t>(a.first + i);
    const Json row = rewards::MakeTaskRow(a.task, size, a.seed, index, form);
    ThrowIfError(
        out.Put(static_cast<size_t>(i), (a.messages ? rewards::InMessages(row) : row).dump()));
  }
  ThrowIfError(out.Finish());
  fmt::print(out.streams() ? stderr : stdout, "{}: {} rows of {}, size {}, seed {}\n",
             Printable(a.output), a.count, a.task, size, a.seed);
}

}  // namespace

void AddDataCommand(CLI::App& app, CommandContext&) {
  CLI::App* data = app.add_subcommand("data", "Make data to train on");
  data->require_subcommand(1);
  const std::string examples =
      "Examples:\n"
      "  keel data make addition --out train.jsonl --count 5000 --seed 1\n"
      "  keel data make addition --out warmup.jsonl --form sft --count 500 --seed 2\n"
      "  keel data make countdown --out val.jsonl --count 200 --seed 3 --size 4";
  data->footer(examples);
  auto arguments = std::make_shared<DataArguments>();
  CLI::App* make = data->add_subcommand("make", "Write a task whose answers can be verified");
  make->footer(examples);
  make->add_option("TASK", arguments->task,
                   fmt::format("{}", fmt::join(rewards::TaskNames(), ", ")))
      ->required();
  make->add_option("--out", arguments->output, "JSON Lines file to write")->required();
  make->add_option("--count", arguments->count, "Rows")
      ->capture_default_str()
      ->check(CLI::Range(int64_t{1}, int64_t{100'000'000}));
  make->add_option("--seed", arguments->seed, "The same seed gives the same rows")
      ->capture_default_str();
  make->add_option("--first", arguments->first, "Number of the first row, to go on from a file")
      ->capture_default_str()
      ->check(AtLeast(0));
  make->add_option("--size", arguments->size,
                   "Digits, bits, or numbers (countdown); 0 takes the task's own")
      ->capture_default_str();
  make->add_option(
          "--form", arguments->form,
          "rl: prompt and answer; sft: prompt and response, to warm a model up; dpo: prompt, "
          "chosen and rejected")
      ->capture_default_str()
      ->check(CLI::IsMember(AllNames<rewards::TaskForm>()));
  make->add_flag("--messages", arguments->messages,
                 "Write prompts and answers as messages, for a model with a chat template");
  make->add_flag("--force", arguments->force, "Write over a file");
  make->callback([arguments] { Make(*arguments); });
  AddTokenizeCommand(*data);
  AddInfoCommand(*data);
  AddShowCommand(*data);
  AddEncodeCommand(*data);
  AddDecodeCommand(*data);
}

}  // namespace keel::tools
