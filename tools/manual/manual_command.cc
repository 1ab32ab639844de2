// keel completion, keel man, and what the shells' scripts ask.

#include <fmt/format.h>

#include <filesystem>
#include <fstream>
#include <memory>
#include <system_error>

#include "common/status.h"
#include "common/text.h"
#include "tools/command.h"
#include "tools/manual/completion.h"
#include "tools/manual/man_page.h"
#include "tools/manual/shell_script.h"
#include "trainer/config/config.h"

namespace keel::tools {

namespace {

// The tables of the program itself, for the time of a call.
template <typename Use>
auto WithTables(const CLI::App& app, Use use) {
  const std::vector<LaunchFlag> flags = LaunchFlags();
  trainer::Config defaults;
  const options::Schema schema = trainer::MakeSchema(defaults);
  return use(CommandTables{app, flags, schema});
}

void WriteAll(const std::vector<ManPage>& pages, const std::filesystem::path& folder) {
  for (const ManPage& page : pages) {
    const std::filesystem::path section = folder / ("man" + page.section);
    std::error_code error;
    std::filesystem::create_directories(section, error);
    std::ofstream file(section / page.file(), std::ios::binary);
    file << page.text;
    file.close();
    if (!file)
      throw Error(StatusCode::kCannotCreate, "cannot write " + (section / page.file()).string());
  }
  fmt::print("{} pages in {}\n", pages.size(), folder.string());
}

struct ManArguments {
  std::vector<std::string> words;
  std::string out;
};

void Man(const CLI::App& app, const ManArguments& arguments) {
  const auto pages = WithTables(app, [](const CommandTables& tables) { return ManPages(tables); });
  if (!arguments.out.empty()) return WriteAll(pages, arguments.out);
  std::string name = fmt::format("{}", fmt::join(arguments.words, "-"));
  if (name != "keel.yaml" && name != "keel") name = name.empty() ? "keel" : "keel-" + name;
  std::vector<std::string> names;
  for (const ManPage& page : pages) {
    if (page.name == name) return fmt::print("{}", page.text);
    names.push_back(page.name);
  }
  const std::string near = Closest(name, names);
  throw Error(StatusCode::kUsage,
              fmt::format("no page {}{}; keel --help lists the commands, and keel.yaml is the page "
                          "of the configuration",
                          Printable(name), near.empty() ? "" : ", did you mean " + near + "?"));
}

}  // namespace

void AddCompletionCommand(CLI::App& app, CommandContext& /*context*/) {
  auto shell = std::make_shared<std::string>();
  CLI::App* completion =
      app.add_subcommand("completion", "What a shell needs to complete the command lines of keel");
  completion->add_option("SHELL", *shell, "bash, zsh or fish")
      ->required()
      ->check(CLI::IsMember(AllNames<Shell>()));
  completion->footer(
      "Examples:\n"
      "  keel completion bash > keel.bash\n"
      "  keel completion zsh > _keel\n"
      "  keel completion fish > keel.fish");
  completion->callback([shell] { fmt::print("{}", CompletionScript(*ParseName<Shell>(*shell))); });
}

void AddManCommand(CLI::App& app, CommandContext& /*context*/) {
  auto arguments = std::make_shared<ManArguments>();
  CLI::App* man = app.add_subcommand("man", "Pages of the manual, for man");
  man->add_option("COMMAND", arguments->words,
                  "As ckpt ls; or keel.yaml, for the configuration (keel)");
  man->add_option("--out", arguments->out,
                  "A folder for all pages: man1/keel.1, ..., man5/keel.yaml.5");
  man->footer(
      "Examples:\n"
      "  keel man ckpt ls > keel-ckpt-ls.1\n"
      "  keel man keel.yaml > keel.yaml.5\n"
      "  keel man --out man");
  man->callback([&app, arguments] { Man(app, *arguments); });
}

int AnswerCompletion(const CLI::App& app, const std::vector<std::string>& words) {
  WithTables(app, [&](const CommandTables& tables) {
    fmt::print("{}", CompletionLines(Complete(tables, words)));
  });
  return 0;
}

}  // namespace keel::tools
