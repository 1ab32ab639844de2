#include "trainer/foreign/foreign_import.h"

#include <fmt/format.h>

#include <algorithm>

#include "common/text.h"

namespace keel::trainer::foreign {

bool IsScript(const options::Source& file) {
  const auto ends = [&](const char* end) { return file.name.ends_with(end); };
  if (ends(".yaml") || ends(".yml")) return false;
  return ends(".sh") || ends(".bash") || ends(".slurm") || ends(".sbatch") ||
         file.text.starts_with("#!") || file.text.find("python") != std::string::npos;
}

Result<ShellCommand> FindLaunch(const ImportRequest& request, const std::string& expected,
                                const IsLaunch& is_launch,
                                std::set<std::string>* from_environment) {
  KEEL_ASSIGN_OR_RETURN(const ShellScript script,
                        ReadShell(request.file, {request.arguments, request.environment}));
  *from_environment = script.from_environment;
  std::vector<ShellCommand> found;
  for (const ShellCommand& command : script.commands) {
    std::string before;
    auto word = command.words.begin();
    while (word != command.words.end() && !is_launch(word->text, before)) before = (word++)->text;
    if (word == command.words.end()) continue;
    found.push_back({{std::next(word), command.words.end()}, word->line});
  }
  if (found.empty()) {
    return Status(StatusCode::kConfig,
                  fmt::format("{}: no command in it is {}", request.file.name, expected));
  }
  if (found.size() > 1) {
    return Status(StatusCode::kConfig,
                  fmt::format("{}: several commands, at lines {} and {}, are {}: keep one",
                              request.file.name, found[0].line, found[1].line, expected));
  }
  return found[0];
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

Imported Finish(const ImportRequest& request, const std::string& command, GivenValues& given,
                const std::set<std::string>& from_environment, Translation& translation) {
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
