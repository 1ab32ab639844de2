// The command line of keel launch: torchrun's flags, each also as its PET_ variable.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "parallel/launch_env.h"
#include "tools/launch/launcher.h"

namespace keel::tools {

// `arguments`: what follows "launch". A command that does not come after "--" is one of
// `program`'s, the path of keel itself. kUsage names the flag, what was found and what was
// expected.
Result<LaunchOptions> ParseLaunchFlags(const std::vector<std::string>& arguments,
                                       const std::string& program, const parallel::EnvLookup& env);

struct LaunchFlag {
  std::string name;     // without dashes
  std::string meaning;  // as --help shows it
  bool takes_value = true;
  std::vector<std::string> choices;  // of values; none where any will do
};

// All flags, for --help, the shells' completion and the manual.
std::vector<LaunchFlag> LaunchFlags();

// The flags with their meanings, for --help.
std::string LaunchFlagHelp();

}  // namespace keel::tools
