// The tools of a run, as multi_turn.tool_config_path lists them. Torch-free.
#pragma once

#include <chrono>
#include <optional>
#include <string>
#include <vector>

#include "common/json.h"
#include "common/status.h"

namespace keel::turns {

struct ToolSpec {
  std::string name;  // tool_schema.function.name, by which the model calls it
  Json schema;       // what chat templates show: {"type": "function", "function": {...}}
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

// Their schemas, as a row's `tools` have them.
Json SchemasOf(const std::vector<ToolSpec>& tools);

}  // namespace keel::turns
