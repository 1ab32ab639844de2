// keel train and keel rollout: one rank of whatever launched it, or a single process.

#include "tools/train_command.h"

#include <sys/stat.h>

#include "common/fail_point.h"
#include "common/log.h"
#include "parallel/launch_env.h"
#include "parallel/store/store.h"
#include "trainer/engine/memory.h"
#include "trainer/trainer.h"

namespace keel::tools {

namespace {

// From here on what this process makes has the umask's permissions, or fewer.
void TakePermissions(trainer::FileMode mode) {
  const mode_t given = ::umask(0077);
  ::umask(given | trainer::TakenPermissions(mode));
}

}  // namespace

int Train(const TrainArguments& arguments, const StopState& stop) {
  trainer::KeepLargeBlocks();
  // A wait on the store goes in slices; c10d warns of each that ends. What fails is an error of
  // ours.
  parallel::SilenceStoreWarnings();
  const auto env = ValueOrThrow(parallel::DetectLaunchEnv(parallel::ProcessEnvironment()));
  ThrowIfError(ArmFailPoints(env.rank));
  LogOptions log_options;
  log_options.rank = env.rank;
  log_options.columns = env.columns;
  Logger log(log_options);
  trainer::TrainerInputs inputs;
  inputs.loaded = arguments.loaded;
  for (const std::string& note : inputs.loaded.notes) log.Info("{}", note);
  TakePermissions(inputs.loaded.config.trainer.file_mode);
  inputs.env = env;
  inputs.join = arguments.join;
  inputs.stop_requested = &stop.requested;
  inputs.status = stop.status.get();
  const trainer::RunEnd end = trainer::RunTraining(inputs, log);
  return end == trainer::RunEnd::kPreempted ? ExitCodeFor(StatusCode::kPreempted) : 0;
}

}  // namespace keel::tools
