// Where a run stands, from its folder and its desk. Torch-free.
#pragma once

#include <chrono>
#include <string>

#include "common/json.h"
#include "common/status.h"

namespace keel::tools {

// {"run", "step", "checkpoint", "desk"}; what is not there is null. `patience`: for the desk to
// answer.
Result<Json> RunStatus(const std::string& folder, std::chrono::milliseconds patience);

// What the desk of a run with rollout workers says of them at this moment, {"problem"} where it is
// not reached, and null where the run has none.
Result<Json> DeskStatus(const std::string& folder, std::chrono::milliseconds patience);

}  // namespace keel::tools
