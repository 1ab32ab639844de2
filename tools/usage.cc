#include "tools/usage.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

#include "common/text.h"

namespace keel::tools {

namespace {

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

}  // namespace

std::string ExplainUsage(const CLI::App& app, int argc, const char* const* argv,
                         std::string_view problem) {
  // 1. As far as the words are commands.
  const CLI::App* at = &app;
  std::string words = "keel";
  int next = 1;
  for (; next < argc && argv[next][0] != '-'; ++next) {
    const CLI::App* command = FindCommand(*at, argv[next]);
    if (command == nullptr) break;
    at = command;
    words += " " + command->get_name();
  }
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

}  // namespace keel::tools
