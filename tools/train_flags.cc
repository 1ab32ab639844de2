// The flags of keel train and keel rollout.

#include <memory>
#include <string>
#include <vector>

#include "common/process/signal_handler.h"
#include "tools/command.h"
#include "tools/torch_module.h"
#include "tools/train_command.h"

namespace keel::tools {

namespace {

struct TrainFlags {
  std::string path;
  std::vector<std::string> overrides;
  std::string join;
};

// A configuration with faults is refused at once: PyTorch's library takes a while to load. Nobody
// who stops reading what it prints ends a run.
int LoadAndTrain(const TrainFlags& flags, CommandContext& context) {
  context.prints_progress = true;
  IgnoreBrokenPipes();
  const TrainArguments arguments = {
      .loaded = ValueOrThrow(trainer::LoadConfig(flags.path, flags.overrides)), .join = flags.join};
  return LoadTorchModule().Train(arguments, TheStopState());
}

}  // namespace

void AddTrainCommand(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* train = app.add_subcommand("train", "Train as a configuration says");
  train->add_option("CONFIG", flags->path, "YAML file; see docs/configuration.md")->required();
  train->add_option("overrides", flags->overrides, "key=value, +key=value, ~key");
  train->footer(
      "Examples:\n"
      "  keel train configs/pretrain_text.yaml 'data.train_files=[text.txt]'\n"
      "  keel launch --nproc-per-node 4 train configs/quickstart.yaml "
      "'data.train_files=[text.txt]'\n"
      "  torchrun --no-python --standalone --nproc-per-node 2 keel train run.yaml");
  train->callback([flags, &context] { context.exit_code = LoadAndTrain(*flags, context); });
}

void AddRolloutCommand(CLI::App& app, CommandContext& context) {
  auto flags = std::make_shared<TrainFlags>();
  CLI::App* rollout =
      app.add_subcommand("rollout", "Generate for an RL run that is under way, as a worker more");
  rollout->add_option("CONFIG", flags->path, "The run's YAML file")->required();
  rollout->add_option("overrides", flags->overrides, "key=value, +key=value, ~key: the run's");
  rollout
      ->add_option("--join", flags->join,
                   "HOST:PORT of the run's desk, as its trainers say it (async_training.port). "
                   "The secret is KEEL_JOB_SECRET's, or is read in the run's folder")
      ->required();
  rollout->footer(
      "Examples:\n"
      "  keel rollout run.yaml --join 10.0.0.1:29600\n"
      "  keel launch --nproc-per-node 8 rollout run.yaml --join 10.0.0.1:29600\n"
      "  keel launch --nproc-per-node 8 --max-restarts 3 rollout run.yaml --join 10.0.0.1:29600");
  rollout->callback([flags, &context] { context.exit_code = LoadAndTrain(*flags, context); });
}

}  // namespace keel::tools
