#include "trainer/trainer.h"

#include <fmt/format.h>

#include "trainer/inputs/run_paths.h"
#include "trainer/rl/dpo_task.h"
#include "trainer/rl/rl_task.h"
#include "trainer/run/job.h"
#include "trainer/run/lm_task.h"

namespace keel::trainer {

RunEnd RunTraining(const TrainerInputs& inputs, Logger& log) {
  const auto problems = ValidateConfig(inputs.loaded.config, inputs.env.world_size);
  if (!problems.empty()) {
    throw Error(StatusCode::kConfig, fmt::format("the configuration does not hold together:\n  {}",
                                                 fmt::join(problems, "\n  ")));
  }
  Job job(inputs, log);
  // A folder that is no run's, or a checkpoint by name that is not there, ends the run first.
  job.Phase("data", 0);
  ThrowIfError(CheckRunPaths(inputs.loaded.config));
  switch (inputs.loaded.config.trainer.task) {
    case TaskKind::kRl:
      return rl::RunRlTask(job);
    case TaskKind::kDpo:
      return rl::RunDpoTask(job);
    case TaskKind::kPretrain:
    case TaskKind::kSft:
      break;
  }
  return RunLmTask(job);
}

}  // namespace keel::trainer
