#include "turns/tools_file.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <array>
#include <cmath>
#include <fstream>
#include <set>
#include <sstream>
#include <string_view>
#include <utility>

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

Result<ToolSpec> ReadTool(const Json& entry, std::string where) {
  if (!entry.is_object()) return Wrong(where, "expected a map of config and tool_schema");
  ToolSpec tool;
  KEEL_ASSIGN_OR_RETURN(tool.schema, ReadSchema(entry, where));
  tool.name = tool.schema["function"]["name"].get<std::string>();
  where += fmt::format(" ({})", Printable(tool.name, 60));
  KEEL_RETURN_IF_ERROR(CheckKeys(entry, {"class_name", "config", "tool_schema"}, where));
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
  KEEL_RETURN_IF_ERROR(ReadConfig(config, where + ": config", &tool));
  return tool;
}

}  // namespace

Result<std::vector<ToolSpec>> LoadTools(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return Status(StatusCode::kNotFound,
                  fmt::format("{}: cannot be read; "
                              "actor_rollout_ref.rollout.multi_turn.tool_config_path names it",
                              path));
  }
  std::ostringstream text;
  text << in.rdbuf();
  const options::Source source{path, text.str()};
  std::vector<options::Problem> problems;
  const options::YamlNode tree = options::ParseYaml(source, problems);
  if (!problems.empty())
    return Status(StatusCode::kInvalidData, options::Render(source, problems.front()));
  const Json file = options::FreeValue(tree);
  const bool list = file.is_object() && file.contains("tools") && file["tools"].is_array();
  if (!list || file["tools"].empty())
    return Wrong(path, "expected tools: a list of config and tool_schema");
  KEEL_RETURN_IF_ERROR(CheckKeys(file, {"tools"}, path));
  std::vector<ToolSpec> tools;
  std::set<std::string> names;
  for (const Json& entry : file["tools"]) {
    KEEL_ASSIGN_OR_RETURN(ToolSpec tool,
                          ReadTool(entry, fmt::format("{}: tools[{}]", path, tools.size())));
    if (!names.insert(tool.name).second)
      return Wrong(path, fmt::format("two tools are named {}", Printable(tool.name, 60)));
    tools.push_back(std::move(tool));
  }
  return tools;
}

Json SchemasOf(const std::vector<ToolSpec>& tools) {
  Json schemas = Json::array();
  for (const ToolSpec& tool : tools) schemas.push_back(tool.schema);
  return schemas;
}

}  // namespace keel::turns
