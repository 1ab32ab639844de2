// The folders and files of a run, before anything is made in them. Torch-free, not collective.
#pragma once

#include <string_view>

#include "common/status.h"
#include "trainer/config/config.h"

namespace keel::trainer {

// Of the run's folder: the configuration as it was resolved.
inline constexpr std::string_view kConfigName = "config.yaml";

// Whether a path has what a shell would have put something in the place of: ~ or a variable.
bool IsUnexpanded(std::string_view path);

// A folder that is none, or no run's, a pipe or a directory in the place of one of its files, or a
// checkpoint by name that is not there.
Status CheckRunPaths(const Config& config);

}  // namespace keel::trainer
