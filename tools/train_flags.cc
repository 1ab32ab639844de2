// The flags of keel train and keel rollout.

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
    context.prints_progress = true;
    context.exit_code = LoadTorchModule().Train(*arguments, TheStopState());
  });
}

void AddRolloutCommand(CLI::App& app, CommandContext& context) {
  auto arguments = std::make_shared<TrainArguments>();
  CLI::App* rollout =
      app.add_subcommand("rollout", "Generate for an RL run that is under way, as a worker more");
  rollout->add_option("CONFIG", arguments->path, "The run's YAML file")->required();
  rollout->add_option("overrides", arguments->overrides, "key=value, +key=value, ~key: the run's");
  rollout
      ->add_option("--join", arguments->join,
                   "HOST:PORT of the run's desk, as its trainers say it (async_training.port). "
                   "The secret is KEEL_JOB_SECRET's, or is read in the run's folder")
      ->required();
  rollout->footer(
      "Examples:\n"
      "  keel rollout run.yaml --join 10.0.0.1:29600\n"
      "  keel launch --nproc-per-node 8 rollout run.yaml --join 10.0.0.1:29600\n"
      "  keel launch --nproc-per-node 8 --max-restarts 3 rollout run.yaml --join 10.0.0.1:29600");
  rollout->callback([arguments, &context] {
    context.prints_progress = true;
    context.exit_code = LoadTorchModule().Train(*arguments, TheStopState());
  });
}

}  // namespace keel::tools
