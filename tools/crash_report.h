// What a rank leaves for its launcher when it fails: torch's error file, named by
// TORCHELASTIC_ERROR_FILE.
#pragma once

#include <string_view>

namespace keel::tools {

// Writes the error file (temp and rename), if the launcher named one. Never throws.
void ReportCrash(std::string_view message, int exit_code) noexcept;
// std::terminate reports before it aborts.
void InstallTerminateHandler();

}  // namespace keel::tools
