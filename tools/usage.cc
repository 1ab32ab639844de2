#include "tools/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdio>
#include <vector>

#include "common/terminal.h"
#include "common/text.h"

namespace keel::tools {

namespace {

constexpr int kExitUsage = 64;

std::vector<std::string> CommandsOf(const CLI::App& app) {
  std::vector<std::string> names;
  for (const CLI::App* command : app.get_subcommands({})) names.push_back(command->get_name());
  std::sort(names.begin(), names.end());
  return names;
}

const CLI::App* FindCommand(const CLI::App& app, std::string_view name) {
  for (const CLI::App* command : app.get_subcommands({})) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

// The one that `word` begins, if there is just one, or the nearest in spelling; "" without either.
std::string Nearest(std::string_view word, const std::vector<std::string>& names) {
  const auto begins = [&](const std::string& name) { return name.starts_with(word); };
  if (std::count_if(names.begin(), names.end(), begins) == 1) {
    return *std::find_if(names.begin(), names.end(), begins);
  }
  return Closest(word, names);
}

// How far the words are commands.
struct Followed {
  const CLI::App* at;
  std::string words;  // "keel ckpt"
  int next;           // the first argument that is none
};

Followed FollowCommands(const CLI::App& app, int argc, const char* const* argv) {
  Followed followed{&app, app.get_name(), 1};
  for (; followed.next < argc && argv[followed.next][0] != '-'; ++followed.next) {
    const CLI::App* command = FindCommand(*followed.at, argv[followed.next]);
    if (command == nullptr) break;
    followed.at = command;
    followed.words += " " + command->get_name();
  }
  return followed;
}

}  // namespace

bool NamesNoCommand(const CLI::App& app, int argc, const char* const* argv) {
  const Followed followed = FollowCommands(app, argc, argv);
  return followed.next < argc && argv[followed.next][0] != '-' && !CommandsOf(*followed.at).empty();
}

std::string ExplainUsage(const CLI::App& app, int argc, const char* const* argv,
                         std::string_view problem) {
  // 1. As far as the words are commands.
  auto [at, words, next] = FollowCommands(app, argc, argv);
  std::string what = Printable(problem, std::string_view::npos);
  std::string advice;

  // 2. A word where a command should be.
  const std::vector<std::string> commands = CommandsOf(*at);
  if (!commands.empty() && next < argc && argv[next][0] != '-') {
    what = fmt::format("unknown command \"{}\"", Printable(argv[next]));
    const std::string nearest = Nearest(argv[next], commands);
    advice = nearest.empty() ? fmt::format("there are {}\n", fmt::join(commands, ", "))
                             : fmt::format("did you mean {} {}?\n", words, nearest);
  }

  // 3. An option that there is not.
  std::vector<std::string> options;
  for (const CLI::Option* option : at->get_options()) {
    for (const std::string& name : option->get_lnames()) options.push_back("--" + name);
  }
  for (int i = next; i < argc && advice.empty() && std::string_view(argv[i]) != "--"; ++i) {
    const std::string_view word =
        std::string_view(argv[i]).substr(0, std::string_view(argv[i]).find('='));
    if (!word.starts_with("--") || std::count(options.begin(), options.end(), word) > 0) continue;
    what = fmt::format("unknown option {}", Printable(word));
    const std::string nearest = Nearest(word, options);
    if (!nearest.empty()) advice = fmt::format("did you mean {}?\n", nearest);
    break;
  }
  return fmt::format("{}: {}\n{}{} --help {}\n", words, what, advice, words,
                     commands.empty() ? "shows how it is used" : "lists the commands");
}

int AnswerParseError(const CLI::App& app, int argc, const char* const* argv,
                     const CLI::ParseError& error) {
  if (error.get_exit_code() == 0 && !NamesNoCommand(app, argc, argv)) return app.exit(error);
  WriteStderr(ExplainUsage(app, argc, argv, error.what()));
  return kExitUsage;
}

}  // namespace keel::tools
