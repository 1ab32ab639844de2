#include "tools/manual/completion.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <optional>
#include <string_view>

namespace keel::tools {

namespace {

using Words = std::vector<std::string>;

// Collects those that begin as what has been written.
class Answer {
 public:
  explicit Answer(std::string written) : written_(std::move(written)) {}

  void Add(const std::string& word, const std::string& meaning) {
    if (word.starts_with(written_)) result_.words.push_back({word, meaning});
  }
  void AddFiles(std::string before = "") {
    result_.files = true;
    result_.before_file = std::move(before);
  }
  // Of an option or key: the choices after `before`, or files where any text will do.
  void AddValues(const std::string& before, const Words& choices, bool any_text) {
    for (const std::string& choice : choices) Add(before + choice, "");
    if (choices.empty() && any_text) AddFiles(before);
  }
  const std::string& written() const { return written_; }
  Completions Take() {
    std::sort(result_.words.begin(), result_.words.end(),
              [](const Completion& a, const Completion& b) { return a.word < b.word; });
    return std::move(result_);
  }

 private:
  std::string written_;
  Completions result_;
};

bool IsText(const CLI::Option& option) { return option.get_type_name().starts_with("TEXT"); }

const CLI::App* FindCommand(const CLI::App& app, std::string_view name) {
  for (const CLI::App* command : ShownCommands(app)) {
    if (command->get_name() == name) return command;
  }
  return nullptr;
}

const CLI::Option* FindOption(const CLI::App& command, std::string_view word) {
  for (const CLI::Option* option : command.get_options()) {
    if (word.starts_with("--")) {
      for (const std::string& name : option->get_lnames()) {
        if (name == word.substr(2)) return option;
      }
    } else if (word.size() == 2 && word[0] == '-') {
      for (const std::string& name : option->get_snames()) {
        if (name == word.substr(1)) return option;
      }
    }
  }
  return nullptr;
}

Words ValuesOf(const options::Option& option) {
  Words values = option.choices;
  if (option.kind == options::Kind::kBool) values = {"false", "true"};
  if (option.nullable && !values.empty()) values.emplace_back("null");
  return values;
}

// "trainer.seed=1" is written a part at a time: first "trainer.", then "trainer.seed=".
void AddKeys(const options::Schema& schema, const std::string& sign, Answer& answer) {
  const std::string written = answer.written().substr(sign.size());
  const size_t begin = written.rfind('.') == std::string::npos ? 0 : written.rfind('.') + 1;
  std::map<std::string, std::string> parts;  // with their meanings; none for sections
  for (const options::Option& option : schema.options()) {
    if (!option.path.starts_with(written)) continue;
    const size_t dot = option.path.find('.', begin);
    if (dot != std::string::npos) {
      parts.emplace(option.path.substr(0, dot + 1), "");
    } else {
      parts.emplace(option.path + (sign == "~" ? "" : "="), option.doc);
    }
  }
  // A section that has no choice but one is gone through at once.
  if (parts.size() == 1 && parts.begin()->first.ends_with('.') && parts.begin()->first != written) {
    Answer inner(sign + parts.begin()->first);
    AddKeys(schema, sign, inner);
    for (const Completion& found : inner.Take().words) answer.Add(found.word, found.meaning);
    return;
  }
  for (const auto& [part, meaning] : parts) answer.Add(sign + part, meaning);
}

void AddOverrides(const options::Schema& schema, Answer& answer) {
  const std::string& written = answer.written();
  const std::string sign =
      written.starts_with('+') || written.starts_with('~') ? written.substr(0, 1) : "";
  const size_t equals = written.find('=');
  if (equals == std::string::npos) return AddKeys(schema, sign, answer);
  const std::string path = written.substr(sign.size(), equals - sign.size());
  for (const options::Option& option : schema.options()) {
    if (option.path == path)
      answer.AddValues(written.substr(0, equals + 1), ValuesOf(option),
                       option.kind == options::Kind::kString);
  }
}

void AddOptions(const CLI::App& command, Answer& answer) {
  for (const CLI::Option* option : command.get_options()) {
    for (const std::string& name : option->get_lnames())
      answer.Add("--" + name, option->get_description());
  }
}

// What follows the name of a command that has no commands of its own.
void CompleteArguments(const CommandTables& tables, const CLI::App& command, const Words& words,
                       Answer& answer) {
  size_t positionals = 0;
  bool only_positionals = false;
  const CLI::Option* open = nullptr;  // the option whose value comes next
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    const std::string& word = words[i];
    if (open != nullptr) {
      open = nullptr;
    } else if (word == "--") {
      only_positionals = true;
    } else if (!only_positionals && word.size() > 1 && word[0] == '-') {
      const CLI::Option* option = FindOption(command, word);
      if (option != nullptr && TakesValue(*option)) open = option;
    } else {
      ++positionals;
    }
  }
  const std::string& written = answer.written();
  if (open != nullptr) return answer.AddValues("", ChoicesOf(*open), IsText(*open));
  if (!only_positionals && written.starts_with("-")) {
    const size_t equals = written.find('=');
    if (equals == std::string::npos) return AddOptions(command, answer);
    const CLI::Option* option = FindOption(command, written.substr(0, equals));
    if (option != nullptr && TakesValue(*option))
      answer.AddValues(written.substr(0, equals + 1), ChoicesOf(*option), IsText(*option));
    return;
  }
  const CLI::Option* next = nullptr;
  for (const CLI::Option* option : command.get_options()) {
    if (!option->get_positional()) continue;
    const bool repeats = option->get_items_expected_max() > 1;
    if (positionals == 0 || repeats) {
      next = option;
      break;
    }
    --positionals;
  }
  if (next == nullptr) return AddOptions(command, answer);
  if (next->get_name(true) == "overrides") return AddOverrides(tables.schema, answer);
  answer.AddValues("", ChoicesOf(*next), IsText(*next));
}

void CompleteCommand(const CommandTables& tables, Words words, Answer& answer);

// The flags are not CLI11's; then comes a command of keel, or any program after "--".
void CompleteLaunch(const CommandTables& tables, const Words& words, Answer& answer) {
  const auto find = [&](std::string name) {
    std::replace(name.begin(), name.end(), '_', '-');
    return std::find_if(tables.launch_flags.begin(), tables.launch_flags.end(),
                        [&](const LaunchFlag& flag) { return "--" + flag.name == name; });
  };
  const auto values = [&](const std::string& before, const LaunchFlag& flag) {
    answer.AddValues(before, flag.choices, flag.name == "log-dir");
  };
  for (size_t i = 0; i + 1 < words.size(); ++i) {
    if (words[i] == "--") return answer.AddFiles();
    if (!words[i].starts_with("-"))
      return CompleteCommand(
          tables, Words(words.begin() + static_cast<std::ptrdiff_t>(i), words.end()), answer);
    const auto flag = find(words[i]);
    if (flag == tables.launch_flags.end() || !flag->takes_value) continue;
    if (++i + 1 == words.size()) return values("", *flag);
  }
  const std::string& written = answer.written();
  const size_t equals = written.find('=');
  if (!written.starts_with("-")) return CompleteCommand(tables, {written}, answer);
  if (equals != std::string::npos) {
    const auto flag = find(written.substr(0, equals));
    if (flag != tables.launch_flags.end()) values(written.substr(0, equals + 1), *flag);
    return;
  }
  for (const LaunchFlag& flag : tables.launch_flags) answer.Add("--" + flag.name, flag.meaning);
  answer.Add("--help", "");
}

void CompleteCommand(const CommandTables& tables, Words words, Answer& answer) {
  const CLI::App* at = &tables.app;
  bool help = false;
  while (words.size() > 1) {
    const std::string word = words.front();
    if (at == &tables.app && word == "help") {
      help = true;
      words.erase(words.begin());
      continue;
    }
    const CLI::App* command = FindCommand(*at, word);
    if (command == nullptr) break;
    words.erase(words.begin());
    at = command;
    if (!help && at->get_name() == "launch") return CompleteLaunch(tables, words, answer);
  }
  const std::vector<const CLI::App*> commands = ShownCommands(*at);
  if (commands.empty()) {
    if (!help) CompleteArguments(tables, *at, words, answer);
    return;
  }
  if (words.size() > 1) return;  // a word that is no command
  if (answer.written().starts_with("-")) return AddOptions(*at, answer);
  for (const CLI::App* command : commands)
    answer.Add(command->get_name(), command->get_description());
  if (at == &tables.app && !help) answer.Add("help", "The help of a command");
}

}  // namespace

std::vector<const CLI::App*> ShownCommands(const CLI::App& app) {
  const auto shown = [](const CLI::App* command) { return !command->get_group().empty(); };
  return app.get_subcommands(shown);
}

bool TakesValue(const CLI::Option& option) { return option.get_items_expected_max() > 0; }

std::vector<std::string> ChoicesOf(const CLI::Option& option) {
  const std::string type = option.get_type_name();
  const size_t begin = type.find(":{");
  const size_t end = type.find('}', std::min(begin, type.size()));
  if (end == std::string::npos) return {};
  std::vector<std::string> choices;
  for (size_t at = begin + 2; at <= end;) {
    const size_t comma = std::min(type.find(',', at), end);
    choices.push_back(type.substr(at, comma - at));
    at = comma + 1;
  }
  return choices;
}

Completions Complete(const CommandTables& tables, const std::vector<std::string>& words) {
  Answer answer(words.empty() ? "" : words.back());
  CompleteCommand(tables, words.empty() ? Words{""} : words, answer);
  return answer.Take();
}

std::string CompletionLines(const Completions& completions) {
  std::string lines;
  for (const auto& [word, meaning] : completions.words) {
    std::string line = meaning.substr(0, meaning.find('\n'));
    std::replace(line.begin(), line.end(), '\t', ' ');
    lines += fmt::format("{}\t{}\n", word, line);
  }
  if (completions.files) lines += fmt::format(":files {}\n", completions.before_file);
  return lines;
}

}  // namespace keel::tools
