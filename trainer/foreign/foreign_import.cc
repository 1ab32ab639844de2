#include "trainer/foreign/foreign_import.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/text.h"

namespace keel::trainer::foreign {

bool IsNamedAsYaml(const options::Source& file) {
  return file.name.ends_with(".yaml") || file.name.ends_with(".yml");
}

bool IsScript(const options::Source& file) {
  if (IsNamedAsYaml(file)) return false;
  const auto ends = [&](const char* end) { return file.name.ends_with(end); };
  return ends(".sh") || ends(".bash") || ends(".slurm") || ends(".sbatch") ||
         file.text.starts_with("#!") || file.text.find("python") != std::string::npos;
}

ShellCommand CommandOf(const std::vector<std::string>& arguments) {
  ShellCommand command;
  for (const std::string& argument : arguments) command.words.push_back({argument, {}, 0});
  return command;
}

std::string LineOf(const ShellWord& word) {
  return word.line > 0 ? fmt::format("line {}: ", word.line) : "";
}

namespace {

// A comment between continued lines, or a blank behind a backslash, ends a command: the shell takes
// the next line for another one.
bool IsCutOff(const ShellCommand& command) {
  const std::string& word = command.words.front().text;
  const size_t equals = word.find('=');
  return word.starts_with("--") || (equals != std::string::npos && word.find('.') < equals);
}

}  // namespace

Result<Launch> FindLaunch(const ImportRequest& request, const std::string& expected,
                          const IsLaunch& is_launch) {
  KEEL_ASSIGN_OR_RETURN(const ShellScript script,
                        ReadShell(request.file, {request.arguments, request.environment}));
  std::vector<Launch> found;
  for (size_t i = 0; i < script.commands.size(); ++i) {
    const ShellCommand& command = script.commands[i];
    std::string before;
    auto word = command.words.begin();
    while (word != command.words.end() && !is_launch(word->text, before)) before = (word++)->text;
    if (word == command.words.end()) continue;
    found.push_back(
        {{{std::next(word), command.words.end()}, word->line}, script.from_environment, {}});
    if (i + 1 < script.commands.size() && IsCutOff(script.commands[i + 1])) {
      const ShellWord& next = script.commands[i + 1].words.front();
      found.back().unresolved.push_back(
          fmt::format("line {}: {} is no part of the command, which ended before it, at a comment "
                      "or at a blank "
                      "behind a backslash",
                      next.line, Printable(next.text, 80)));
    }
  }
  if (found.empty()) {
    const std::string ended =
        script.ended_at == 0
            ? ""
            : fmt::format(
                  ": it ends at line {}, with what it is given (arguments stand behind the "
                  "file, variables before the command)",
                  script.ended_at);
    return Status(StatusCode::kConfig,
                  fmt::format("{}: no command in it is {}{}", request.file.name, expected, ended));
  }
  if (found.size() > 1) {
    return Status(
        StatusCode::kConfig,
        fmt::format("{}: several commands, at lines {} and {}, are {}: keep one", request.file.name,
                    found[0].command.line, found[1].command.line, expected));
  }
  return std::move(found[0]);
}

void ExpandHome(const Environment& environment, const options::Schema& schema,
                Translation* translation) {
  const std::optional<std::string> home = environment("HOME");
  if (!home) return;
  const auto expanded = [&](const Json& value) {
    const bool is_home = value.is_string() && value.get_ref<const std::string&>().starts_with("~/");
    return is_home ? Json(*home + value.get<std::string>().substr(1)) : value;
  };
  for (const options::Option& option : schema.options()) {
    if (!option.per_node || !translation->Has(option.path)) continue;
    const Json value = translation->Get(option.path);
    Json changed = value.is_array() ? Json::array() : expanded(value);
    if (value.is_array()) {
      for (const Json& item : value) changed.push_back(expanded(item));
    }
    if (changed != value) translation->Set(option.path, std::move(changed), "~ is " + *home);
  }
}

Result<Imported> Finish(const ImportRequest& request, const std::string& command,
                        GivenValues& given, const std::set<std::string>& from_environment,
                        Translation& translation) {
  KEEL_RETURN_IF_ERROR(translation.HasSome(request.file.name));
  std::set<std::string> names = from_environment;
  names.insert(given.from_environment().begin(), given.from_environment().end());
  if (!names.empty())
    translation.Note(fmt::format("from the environment: {}", fmt::join(names, ", ")));
  Imported imported;
  imported.yaml =
      translation.Yaml(fmt::format("Made by `keel config {} {}`.", command, request.file.name));
  imported.report = translation.Report(request.file.name);
  imported.unresolved = translation.unresolved();
  return imported;
}

}  // namespace keel::trainer::foreign
