// keel launch: torchrun's flags; what follows them is a keel command, or any program after "--".

#include <fmt/format.h>

#include "common/process/shared_module.h"
#include "tools/command.h"
#include "tools/launch/launch_flags.h"
#include "tools/launch/launcher.h"

namespace keel::tools {

namespace {

std::string Footer() {
  return LaunchFlagHelp() +
         "Examples:\n"
         "  keel launch --nproc-per-node 4 train configs/quickstart.yaml "
         "'data.train_files=[text.txt]'\n"
         "  keel launch --nnodes 2 --node-rank 0 --master-addr 10.0.0.1 --nproc-per-node 8 train "
         "run.yaml\n"
         "  keel launch --nproc-per-node 2 --log-dir logs -- ./program argument";
}

}  // namespace

void AddLaunchCommand(CLI::App& app, CommandContext& context) {
  CLI::App* launch =
      app.add_subcommand("launch", "Start a command on several ranks, as torchrun does");
  launch->footer(Footer());
  launch->callback([&context] {
    context.prints_progress = true;
    // After "keel launch".
    const std::vector<std::string> arguments(context.arguments.begin() + 2,
                                             context.arguments.end());
    const LaunchOptions options =
        ValueOrThrow(ParseLaunchFlags(arguments, ProgramPath(), parallel::ProcessEnvironment()));
    context.exit_code = ValueOrThrow(Launch(options));
  });
}

}  // namespace keel::tools
