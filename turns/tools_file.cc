#include "turns/tools_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <set>
#include <string_view>
#include <utility>

#include "common/files/whole_file.h"
#include "common/options/option_value.h"
#include "common/options/yaml_tree.h"
#include "common/text.h"

namespace keel::turns {

namespace {

constexpr double kMostSeconds = 86'400;
constexpr int64_t kMostWorkers = 1024;

Status Wrong(const std::string& where, const std::string& what) {
  return Status(StatusCode::kInvalidData, where + ": " + what);
}

Status CheckKeys(const Json& map, const std::vector<std::string_view>& known,
                 const std::string& where) {
  for (const auto& [key, value] : map.items()) {
    if (std::find(known.begin(), known.end(), key) != known.end()) continue;
    return Wrong(where, fmt::format("{}: no such key; there are {}", Printable(key, 60),
                                    fmt::join(known, ", ")));
  }
  return Status::Ok();
}

Result<Json> ReadSchema(const Json& entry, const std::string& where) {
  const auto found = entry.find("tool_schema");
  const bool whole = found != entry.end() && found->is_object() && found->contains("function") &&
                     (*found)["function"].is_object() && found->value("type", "") == "function";
  if (!whole)
    return Wrong(where,
                 "tool_schema: expected {type: function, function: {name, description, "
                 "parameters}}");
  const Json& function = (*found)["function"];
  const auto name = function.find("name");
  if (name == function.end() || !name->is_string() || *name == "")
    return Wrong(where, "tool_schema.function.name: expected the name that the model calls");
  if (function.contains("parameters") && !function["parameters"].is_object())
    return Wrong(where, "tool_schema.function.parameters: expected a map");
  return *found;
}

Status ReadConfig(const Json& config, const std::string& where, ToolSpec* tool) {
  KEEL_RETURN_IF_ERROR(CheckKeys(
      config, {"type", "command", "url", "ca_file", "timeout_seconds", "num_workers"}, where));
  if (config.contains("type") && config["type"] != "native") {
    return Wrong(where, "type: expected native; tools of an MCP server are not in this release");
  }
  if (config.contains("command") == config.contains("url"))
    return Wrong(where, "expected either command: [program, arguments ...] or url: http://...");
  if (config.contains("command")) {
    const Json& command = config["command"];
    const bool list = command.is_array() && !command.empty() &&
                      std::all_of(command.begin(), command.end(),
                                  [](const Json& part) { return part.is_string(); });
    if (!list || command[0] == "")
      return Wrong(where, "command: expected a list of a program and its arguments, all texts");
    tool->command = command.get<std::vector<std::string>>();
  } else {
    KEEL_ASSIGN_OR_RETURN(tool->url, GetString(config, "url", where));
  }
  if (config.contains("ca_file")) {
    KEEL_ASSIGN_OR_RETURN(tool->ca_file, GetString(config, "ca_file", where));
  }
  if (config.contains("timeout_seconds")) {
    KEEL_ASSIGN_OR_RETURN(const double seconds, GetDouble(config, "timeout_seconds", where));
    if (!(seconds >= 0.001 && seconds <= kMostSeconds))
      return Wrong(where, fmt::format("timeout_seconds: expected 0.001 to {}", kMostSeconds));
    tool->timeout = std::chrono::milliseconds(std::llround(seconds * 1000));
  }
  if (config.contains("num_workers")) {
    KEEL_ASSIGN_OR_RETURN(tool->num_workers, GetInt(config, "num_workers", where));
    if (tool->num_workers < 1 || tool->num_workers > kMostWorkers)
      return Wrong(where, fmt::format("num_workers: expected 1 to {}", kMostWorkers));
  }
  return Status::Ok();
}

// `entry` has a program or an address in its config.
Status ReadServer(const Json& entry, const std::string& where, ToolSpec* server) {
  const Json config = entry.value("config", Json::object());
  const bool ours = config.is_object() && (config.contains("command") || config.contains("url"));
  if (!ours) {
    const std::string python = entry.contains("class_name")
                                   ? fmt::format(
                                         "class_name {} is a Python class, and Keel runs "
                                         "none: ",
                                         Printable(entry["class_name"].dump(), 100))
                                   : "";
    return Wrong(where, python +
                            "give config.command, a program that answers a JSON object a line, or "
                            "config.url, a service that is sent them (docs/tools.md)");
  }
  return ReadConfig(config, where + ": config", server);
}

Result<ToolSpec> ReadTool(const Json& entry, std::string where) {
  if (!entry.is_object()) return Wrong(where, "expected a map of config and tool_schema");
  ToolSpec tool;
  KEEL_ASSIGN_OR_RETURN(tool.schema, ReadSchema(entry, where));
  tool.name = tool.schema["function"]["name"].get<std::string>();
  where += fmt::format(" ({})", Printable(tool.name, 60));
  KEEL_RETURN_IF_ERROR(CheckKeys(entry, {"class_name", "config", "tool_schema"}, where));
  KEEL_RETURN_IF_ERROR(ReadServer(entry, where, &tool));
  return tool;
}

Result<ToolSpec> ReadEnvironment(const Json& entry, std::string where) {
  if (!entry.is_object()) return Wrong(where, "expected a map of name and config");
  ToolSpec environment;
  environment.is_environment = true;
  KEEL_ASSIGN_OR_RETURN(environment.name, GetString(entry, "name", where));
  if (environment.name.empty()) return Wrong(where, "name: expected a name");
  where += fmt::format(" ({})", Printable(environment.name, 60));
  KEEL_RETURN_IF_ERROR(CheckKeys(entry, {"name", "class_name", "config"}, where));
  KEEL_RETURN_IF_ERROR(ReadServer(entry, where, &environment));
  return environment;
}

// A list of one key of the file at `path`, which `option` names.
template <typename Read>
Result<std::vector<ToolSpec>> LoadServers(const std::string& path, const char* option,
                                          const char* key, const char* parts, Read read) {
  const Result<std::string> text = ReadWholeFile(path);
  if (!text.ok()) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}; actor_rollout_ref.rollout.multi_turn.{} names it",
                              text.status().message(), option));
  }
  const options::Source source{path, *text};
  std::vector<options::Problem> problems;
  const options::YamlNode tree = options::ParseYaml(source, problems);
  if (!problems.empty())
    return Status(StatusCode::kInvalidData, options::Render(source, problems.front()));
  const Json file = options::FreeValue(tree);
  const bool list = file.is_object() && file.contains(key) && file[key].is_array();
  if (!list || file[key].empty())
    return Wrong(path, fmt::format("expected {}: a list of {}", key, parts));
  KEEL_RETURN_IF_ERROR(CheckKeys(file, {key}, path));
  std::vector<ToolSpec> servers;
  std::set<std::string> names;
  for (const Json& entry : file[key]) {
    KEEL_ASSIGN_OR_RETURN(ToolSpec server,
                          read(entry, fmt::format("{}: {}[{}]", path, key, servers.size())));
    if (!names.insert(server.name).second)
      return Wrong(path, fmt::format("two of them are named {}", Printable(server.name, 60)));
    servers.push_back(std::move(server));
  }
  return servers;
}

}  // namespace

Result<std::vector<ToolSpec>> LoadTools(const std::string& path) {
  return LoadServers(path, "tool_config_path", "tools", "config and tool_schema", ReadTool);
}

Result<std::vector<ToolSpec>> LoadEnvironments(const std::string& path) {
  return LoadServers(path, "interaction_config_path", "interaction", "name and config",
                     ReadEnvironment);
}

Result<std::string> EnvironmentOf(const Json& extra_info, const std::vector<std::string>& names) {
  const std::string where = "extra_info.interaction_kwargs";
  const auto kwargs = extra_info.find("interaction_kwargs");
  if (names.empty() || kwargs == extra_info.end() || kwargs->is_null()) return std::string();
  if (!kwargs->is_object()) return Wrong(where, "expected an object with the environment's name");
  const auto name = kwargs->find("name");
  const bool named = name != kwargs->end() && !name->is_null();
  if (!named && names.size() == 1) return names[0];
  const bool known = named && name->is_string() &&
                     std::find(names.begin(), names.end(), name->get<std::string>()) != names.end();
  if (known) return name->get<std::string>();
  return Wrong(
      where, fmt::format("name: expected one of multi_turn.interaction_config_path ({}), found {}",
                         fmt::join(names, ", "), named ? Printable(name->dump(), 60) : "none"));
}

std::vector<std::string> NamesOf(const std::vector<ToolSpec>& servers) {
  std::vector<std::string> names;
  for (const ToolSpec& server : servers) names.push_back(server.name);
  return names;
}

Result<std::vector<std::string>> SelectionOf(const Json& extra_info) {
  const auto selection = extra_info.find("tool_selection");
  std::vector<std::string> names;
  if (selection == extra_info.end() || selection->is_null()) return names;
  const auto is_name = [](const Json& name) { return name.is_string(); };
  if (!selection->is_array() || !std::all_of(selection->begin(), selection->end(), is_name))
    return Wrong("extra_info.tool_selection", "expected a list of tools' names");
  for (const Json& name : *selection)
    if (std::find(names.begin(), names.end(), name) == names.end())
      names.push_back(name.get<std::string>());
  return names;
}

std::vector<std::string> ToolsOf(const Json& extra_info, const std::vector<std::string>& names) {
  std::vector<std::string> chosen = ValueOrThrow(SelectionOf(extra_info));
  if (chosen.empty()) return names;
  std::erase_if(chosen, [&](const std::string& name) {
    return std::find(names.begin(), names.end(), name) == names.end();
  });
  return chosen;
}

Json SchemasOf(const std::vector<ToolSpec>& tools) {
  Json schemas = Json::array();
  for (const ToolSpec& tool : tools) schemas.push_back(tool.schema);
  return schemas;
}

}  // namespace keel::turns
