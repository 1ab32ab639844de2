// The flags that all commands have which compute with a model.
#pragma once

#include <string>

#include <CLI/CLI.hpp>

namespace keel::tools {

// What it may be is said by trainer::ParseDeviceWish, in the module that has the devices.
inline void AddDeviceOption(CLI::App& command, std::string* device) {
  command.add_option("--device", *device,
                     "auto: a GPU where each rank has one; cpu; cuda, or cuda:N of several (auto)");
}

// See named_model.h.
inline void AddBaseOption(CLI::App& command, std::string* base) {
  command.add_option("--base", *base,
                     "Where the model lies that adapters (LoRA) stand beside, if not where their "
                     "adapter_config.json says");
}

}  // namespace keel::tools
