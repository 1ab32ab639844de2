// keel train: one rank of whatever launched it, or a single process.

#include <sys/stat.h>

#include <csignal>
#include <cstdlib>
#include <ctime>
#include <memory>

#include "common/fail_point.h"
#include "common/log.h"
#include "common/signal_handler.h"
#include "parallel/launch_env.h"
#include "parallel/rank_status.h"
#include "parallel/store.h"
#include "tools/command.h"
#include "trainer/memory.h"
#include "trainer/trainer.h"

namespace keel::tools {

namespace {

// Signals reach the trainer through this alone: when the first one came. A second one ends the
// process at once; what it was saving is removed by the next start. One that comes within a second
// is the same: whoever ends a whole control group signals the rank, and the launcher, which passes
// it on.
std::atomic<int64_t> stop_requested{0};
// Where the launcher reads that the end was asked for.
std::atomic<parallel::RankStatus*> rank_status{nullptr};
constexpr int64_t kSameRequest_ns = 1'000'000'000;

extern "C" void OnStopSignal(int number) {
  timespec now{};
  clock_gettime(CLOCK_MONOTONIC, &now);
  const int64_t now_ns = now.tv_sec * 1'000'000'000 + now.tv_nsec;
  int64_t first_ns = 0;
  if (stop_requested.compare_exchange_strong(first_ns, now_ns)) return;
  if (now_ns - first_ns <= kSameRequest_ns) return;
  rank_status.load()->SetStopped();
  std::_Exit(128 + number);
}

// From here on what this process makes has the umask's permissions, or fewer.
void TakePermissions(const std::string& file_mode) {
  const mode_t given = ::umask(0077);
  mode_t taken = 0;
  for (const trainer::FileMode& mode : trainer::kFileModes) {
    if (file_mode == mode.name) taken = mode.taken;
  }
  ::umask(given | taken);
}

int Train(const std::string& path, const std::vector<std::string>& overrides) {
  trainer::KeepLargeBlocks();
  // A wait on the store goes in slices; c10d warns of each that ends. What fails is an error of
  // ours.
  parallel::SilenceStoreWarnings();
  const auto env = ValueOrThrow(parallel::DetectLaunchEnv(parallel::ProcessEnvironment()));
  ThrowIfError(ArmFailPoints(env.rank));
  LogOptions log_options;
  log_options.rank = env.rank;
  Logger log(log_options);
  trainer::TrainerInputs inputs;
  inputs.loaded = ValueOrThrow(trainer::LoadConfig(path, overrides));
  for (const std::string& note : inputs.loaded.notes) log.Info("{}", note);
  TakePermissions(inputs.loaded.config.trainer.file_mode);
  inputs.env = env;
  inputs.stop_requested = &stop_requested;
  // Never freed: a signal may come until the process has ended.
  static auto& status = *new parallel::RankStatus(env.status_file);
  status.Set(0, "start");
  inputs.status = &status;
  rank_status = &status;
  for (const int number : {SIGTERM, SIGUSR1}) ThrowIfError(HandleSignal(number, OnStopSignal));
  const trainer::RunEnd end = trainer::RunTraining(inputs, log);
  return end == trainer::RunEnd::kPreempted ? ExitCodeFor(StatusCode::kPreempted) : 0;
}

}  // namespace

void AddTrainCommand(CLI::App& app, CommandContext& context) {
  struct TrainArguments {
    std::string path;
    std::vector<std::string> overrides;
  };
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
  train->callback(
      [arguments, &context] { context.exit_code = Train(arguments->path, arguments->overrides); });
}

}  // namespace keel::tools
