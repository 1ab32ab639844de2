// keel config {import-verl,import-trl}

#include <fmt/format.h>

#include <cstddef>
#include <cstdio>
#include <cstdlib>
#include <filesystem>
#include <memory>
#include <optional>
#include <span>

#include "common/files/may_replace.h"
#include "common/files/whole_file.h"
#include "common/text.h"
#include "tools/command.h"
#include "tools/row_output.h"
#include "trainer/config/config.h"
#include "trainer/foreign/trl_import.h"
#include "trainer/foreign/verl_import.h"
#include "trainer/foreign/verl_keys.h"

namespace keel::tools {

namespace {

namespace foreign = trainer::foreign;

struct ImportArguments {
  std::string path;
  std::vector<std::string> arguments;
  std::string out;
  std::string method;
  int world = 0;
  bool table = false;
};

std::optional<foreign::TrlMethod> MethodOf(const ImportArguments& a) {
  return ParseName<foreign::TrlMethod>(a.method);
}

foreign::ImportRequest RequestOf(const ImportArguments& a) {
  if (a.path.empty())
    throw Error(StatusCode::kConfig, "expected a FILE to import, or --table for all keys");
  foreign::ImportRequest request;
  request.file = {a.path, ValueOrThrow(ReadWholeFile(a.path))};
  request.arguments = a.arguments;
  request.world = a.world;
  request.environment = [](const std::string& name) -> std::optional<std::string> {
    const char* value = std::getenv(name.c_str());
    return value != nullptr ? std::optional<std::string>(value) : std::nullopt;
  };
  return request;
}

// What `keel config validate --no-files` would say of the text.
std::vector<std::string> ProblemsOf(const std::string& yaml, const std::string& name,
                                    int64_t world) {
  trainer::Config config;
  options::Schema schema = trainer::MakeSchema(config);
  if (const Status status = schema.Load({name, yaml}, {}); !status.ok()) return {status.message()};
  return trainer::ValidateConfig(config, static_cast<int>(world));
}

// The YAML goes to --out, and what was made of the keys to the output; without --out the YAML is
// the output, and the rest goes beside it.
void Write(const ImportArguments& a, const foreign::Imported& imported, CommandContext& context) {
  std::FILE* beside = a.out.empty() ? stderr : stdout;
  if (a.out.empty()) {
    fmt::print("{}", imported.yaml);
    std::fflush(stdout);
  } else {
    if (std::filesystem::is_regular_file(a.out))
      ThrowIfError(MayReplace(a.out, "# Made by `keel config import-").WithContext("--out"));
    RowOutput out = ValueOrThrow(RowOutput::Open("--out", a.out));
    ThrowIfError(out.PutBytes(0, std::as_bytes(std::span(imported.yaml))));
    ThrowIfError(out.Finish());
  }
  fmt::print(beside, "{}", imported.report);
  const std::string name = a.out.empty() ? "the result" : a.out;
  const std::vector<std::string> problems = ProblemsOf(imported.yaml, name, imported.world);
  if (problems.empty()) {
    fmt::print(beside, "{}: valid for {} ranks; its model and data: keel config validate\n", name,
               imported.world);
  } else {
    fmt::print(beside, "{} is not valid for {} ranks:\n", name, imported.world);
    for (const std::string& problem : problems) fmt::print(beside, "  {}\n", problem);
  }
  if (!problems.empty() || !imported.unresolved.empty())
    context.exit_code = ExitCodeFor(StatusCode::kConfig);
}

void PrintTable(std::span<const foreign::Row> rows) {
  trainer::Config defaults;
  const options::Schema schema = trainer::MakeSchema(defaults);
  fmt::print("{}", foreign::TableText(foreign::KeyTable(rows), schema));
}

CLI::App* AddImport(CLI::App& config, const std::string& name, const std::string& what,
                    const std::string& file, std::shared_ptr<ImportArguments> arguments) {
  CLI::App* command = config.add_subcommand(name, what);
  command->add_option("FILE", arguments->path, file);
  command->add_option(
      "ARGUMENTS", arguments->arguments,
      "Of a script: what it would be started with ($1, \"$@\"); of YAML: what stands "
      "behind it on the trainer's command line (those with -- behind a --)");
  command->add_option("--out", arguments->out, "YAML to write (default: the output)");
  command->add_flag("--table", arguments->table, "Print what becomes of every key, as Markdown");
  return command;
}

}  // namespace

void AddConfigImports(CLI::App& config, CommandContext& context) {
  auto verl = std::make_shared<ImportArguments>();
  CLI::App* import_verl = AddImport(
      config, "import-verl", "Make a configuration of verl's",
      "verl's merged YAML, a part of it, or a script that launches verl.trainer.main_ppo", verl);
  import_verl->footer(
      "Examples:\n"
      "  keel config import-verl run_qwen3-8b.sh --out run.yaml\n"
      "  keel config import-verl ppo_trainer.yaml\n"
      "  keel config import-verl --table");
  import_verl->callback([verl, &context] {
    if (verl->table) return PrintTable(foreign::VerlRows());
    trainer::Config defaults;
    Write(*verl, ValueOrThrow(foreign::ImportVerl(RequestOf(*verl), trainer::MakeSchema(defaults))),
          context);
  });

  auto trl = std::make_shared<ImportArguments>();
  CLI::App* import_trl =
      AddImport(config, "import-trl", "Make a configuration of TRL's",
                "YAML as `trl sft --config` takes it, or a script that launches trl", trl);
  import_trl
      ->add_option("--method", trl->method,
                   "Which of TRL's trainers a YAML file is for (a script says it)")
      ->check(CLI::IsMember(AllNames<foreign::TrlMethod>()));
  import_trl->add_option("--world", trl->world,
                         "Number of ranks, by which TRL's batches are multiplied (default: 1)");
  import_trl->footer(
      "Examples:\n"
      "  keel config import-trl sft_config.yaml --method sft --out run.yaml\n"
      "  keel config import-trl run_grpo.sh --world 8\n"
      "  keel config import-trl --table --method dpo");
  import_trl->callback([trl, &context] {
    if (trl->table) {
      const auto rows = foreign::TrlRows(MethodOf(*trl).value_or(foreign::TrlMethod::kSft));
      return PrintTable(rows);
    }
    trainer::Config defaults;
    Write(*trl,
          ValueOrThrow(
              foreign::ImportTrl(RequestOf(*trl), MethodOf(*trl), trainer::MakeSchema(defaults))),
          context);
  });
}

}  // namespace keel::tools
