// --device, of the commands that compute with a model.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace keel::tools {

// What it may be is said by trainer::ParseDeviceWish, in the module that has the devices.
inline void AddDeviceOption(CLI::App& command, std::string* device) {
  command.add_option("--device", *device,
                     "auto: a GPU where each rank has one; cpu; cuda, or cuda:N of several (auto)");
}

}  // namespace keel::tools
