// The tools of a run, as multi_turn.tool_config_path lists them, and its environments, as
// interaction_config_path does. Torch-free.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace keel::turns {

// A program or a service that answers: a tool, or an environment.
struct ToolSpec {
  bool is_environment = false;
  // A tool's tool_schema.function.name, by which the model calls it; an environment's name, by
  // which a row chooses it.
  std::string name;
  // What chat templates show: {"type": "function", "function": {...}}; null of an environment.
  Json schema;
  // One of the two.
  std::vector<std::string> command;
  std::optional<std::string> url;
  std::string ca_file;
  std::chrono::milliseconds timeout{10'000};  // of a call
  int64_t num_workers = 2;                    // calls at a time
};

// YAML as verl's: tools: [{class_name, config, tool_schema}]. kNotFound with the path; kInvalidData
// names file, tool and what was expected.
Result<std::vector<ToolSpec>> LoadTools(const std::string& path);

// YAML as verl's: interaction: [{name, class_name, config}]. Errors as of LoadTools.
Result<std::vector<ToolSpec>> LoadEnvironments(const std::string& path);

// The environment that a row of this extra_info is for, one of `names`: interaction_kwargs.name, or
// the only one where interaction_kwargs names none; "" for a row without interaction_kwargs, and
// where there are no environments. kInvalidData says what is wrong.
Result<std::string> EnvironmentOf(const Json& extra_info, const std::vector<std::string>& names);

std::vector<std::string> NamesOf(const std::vector<ToolSpec>& servers);

// The tools that a row of this extra_info asks for by tool_selection, as verl names it; none where
// it has no such key, a null or an empty list: it has all of the run's. kInvalidData: no names.
Result<std::vector<std::string>> SelectionOf(const Json& extra_info);
// Of the run's tools, `names`, those that such a row has, in the order of its selection.
std::vector<std::string> ToolsOf(const Json& extra_info, const std::vector<std::string>& names);

// Their schemas, as a row's `tools` have them.
Json SchemasOf(const std::vector<ToolSpec>& tools);

}  // namespace keel::turns
