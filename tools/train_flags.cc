// The flags of keel train.

#include <memory>

#include "tools/command.h"
#include "tools/torch_module.h"
#include "tools/train_command.h"

namespace keel::tools {

void AddTrainCommand(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* train = app.add_subcommand("train", "Train as a configuration says");
  train->add_option("CONFIG", arguments->path, "YAML file; see docs/configuration.md")->required();
  train->add_option("overrides", arguments->overrides, "key=value, +key=value, ~key");
  train->footer(
      "Examples:\n"
      "  keel train configs/pretrain_text.yaml 'data.train_files=[text.txt]'\n"
      "  keel launch --nproc-per-node 4 train configs/quickstart.yaml "
      "'data.train_files=[text.txt]'\n"
      "  torchrun --no-python --standalone --nproc-per-node 2 keel train run.yaml");
  train->callback([arguments, &context] {
    context.exit_code = LoadTorchModule().Train(*arguments, TheStopState());
  });
}

}  // namespace keel::tools
