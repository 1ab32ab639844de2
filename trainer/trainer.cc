#include "trainer/trainer.h"

#include <fmt/format.h>

#include <memory>

#include "trainer/inputs/lm_inputs.h"
#include "trainer/inputs/run_model.h"
#include "trainer/inputs/run_paths.h"
#include "trainer/rl/dpo_task.h"
#include "trainer/rl/generation/rollout_options.h"
#include "trainer/rl/generation/rollout_rank.h"
#include "trainer/rl/rl_task.h"
#include "trainer/run/lm_task.h"
#include "trainer/run/task_runner.h"

namespace keel::trainer {

namespace {

class LmFiles : public LmInputs {
 public:
  explicit LmFiles(const Config& config) : config_(config) {}

  const ModelDescription& OpenModel() override {
    return model_ = ValueOrThrow(OpenRunModel(config_));
  }
  Samples LoadSamples() override {
    data_ = ValueOrThrow(LoadLmData(config_, model_));
    return {data_.train, data_.val};
  }

 private:
  const Config& config_;
  ModelSource model_;
  RunData<Dataset> data_;
};

std::unique_ptr<Task> MakeTask(const TrainerInputs& inputs, TaskRunner& runner, LmFiles& files) {
  switch (inputs.loaded.config.trainer.task) {
    case TaskKind::kRl:
      return rl::MakeRlTask(runner.job(), runner.course(), inputs);
    case TaskKind::kDpo:
      return rl::MakeDpoTask(runner.job(), runner.course(), inputs.loaded.config);
    case TaskKind::kPretrain:
    case TaskKind::kSft:
      break;
  }
  return MakeLmTask(runner.job(), runner.course(), files);
}

}  // namespace

RunEnd RunTraining(const TrainerInputs& job_inputs, Logger& log) {
  if (!job_inputs.join.empty()) {
    if (job_inputs.loaded.config.async_training.placement != Placement::kSplit)
      throw Error(StatusCode::kConfig,
                  "keel rollout: async_training.placement is colocated: such a run has no workers");
    const int tp = rl::RolloutTp(job_inputs.loaded.config);
    if (job_inputs.env.world_size % tp != 0)
      throw Error(
          StatusCode::kConfig,
          fmt::format("keel rollout: {} ranks are no whole number of replicas of "
                      "actor_rollout_ref.rollout.tensor_model_parallel_size {}: {} % {} = {}",
                      job_inputs.env.world_size, tp, job_inputs.env.world_size, tp,
                      job_inputs.env.world_size % tp));
    return rl::RunRolloutRank(job_inputs, {0, job_inputs.env.world_size}, log);
  }
  const JobRoles roles = ValueOrThrow(
      RolesOf(job_inputs.loaded.config, job_inputs.env.world_size, job_inputs.env.trainers));
  // The ranks that train are a world of their own.
  TrainerInputs inputs = job_inputs;
  inputs.job_ranks = job_inputs.env.world_size;
  inputs.env.world_size = roles.trainers;
  const auto problems = ValidateConfig(inputs.loaded.config, inputs.env.world_size);
  if (!problems.empty()) {
    throw Error(StatusCode::kConfig, fmt::format("the configuration does not hold together:\n  {}",
                                                 fmt::join(problems, "\n  ")));
  }
  if (inputs.env.rank >= roles.trainers) return rl::RunRolloutRank(job_inputs, roles, log);
  TaskRunner runner(inputs, log);
  // A folder that is no run's, or a checkpoint by name that is not there, ends the run first.
  runner.job().Phase("data", 0);
  ThrowIfError(CheckRunPaths(inputs.loaded.config));
  LmFiles files(inputs.loaded.config);
  return runner.Run(*MakeTask(inputs, runner, files));
}

}  // namespace keel::trainer
