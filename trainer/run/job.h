// Job: this rank among the ranks of its job, as a task needs it: what it was told, its device, its
// groups, and how models are made there.
//
// Made and connected by the runner (task_runner.h, job_connection.h). Used from the training
// thread. Methods are not collective unless they say so.
#pragma once

#include <ATen/ATen.h>

#include <atomic>
#include <chrono>
#include <cstdint>
#include <map>
#include <string>

#include "common/clock.h"
#include "common/log.h"
#include "parallel/groups/context.h"
#include "parallel/launch_env.h"
#include "parallel/rank_status.h"
#include "trainer/config/sections.h"
#include "trainer/data/batch.h"
#include "trainer/engine/lr_schedule.h"
#include "trainer/engine/train_engine.h"
#include "trainer/inputs/model_description.h"

namespace keel::trainer {

// What a rank of a job was started with. All that it points to must outlive the job.
struct JobOptions {
  CommonSections config;
  parallel::LaunchEnv env;
  // Set from outside (a signal), to the monotonic clock's nanoseconds; 0 before that. May be null.
  const std::atomic<int64_t>* stop_requested = nullptr;
  parallel::RankStatus* status = nullptr;  // may be null
};

class Job {
 public:
  // `device`: what this rank could compute on, as far as it knows by itself.
  Job(const JobOptions& options, at::Device device, Logger& log);

  const CommonSections& config() const { return options_.config; }
  const parallel::LaunchEnv& env() const { return options_.env; }
  Logger& log() { return log_; }
  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }
  std::chrono::milliseconds deadline() const { return deadline_; }  // of waits for a peer
  bool rank0() const { return options_.env.rank == 0; }
  // What this rank does, and in which step, for the launcher's messages and those of a failure.
  void Phase(const char* phase, int64_t step) const;
  const char* phase() const { return phase_; }  // the last one

  // 1. The ranks are connected, and have agreed on where they compute.
  void Attach(parallel::ParallelContext& context, at::Device device);
  parallel::ParallelContext& context() { return *context_; }
  // What products on the host need, before the process has other threads: see matrix_product.h.
  void MakeHostKernels() const;
  // What metrics say of the device's memory; nothing on a CPU.
  std::map<std::string, double> DeviceMemory() const;

  // 2. Models. Options of an engine as the configuration has them, with the job's vote.
  TrainEngineOptions EngineOptions(const MegatronSection& megatron, const OptimSection& optim);
  // Of the batches of rows that such an engine is given.
  BatchOptions BatchesFor(const TrainEngineOptions& engine) const;
  StepVote& vote() { return vote_; }
  // What the updates of a step tell, without one. Collective.
  void CountVotes();
  // Whether some rank wants to stop by now, for what is left then. Collective.
  bool StopWanted();
  // The model's weights, or random ones where it has no directory, into an engine.
  void FillWeights(const ModelDescription& model, TrainEngine& engine);
  // Of the section `key`, "actor_rollout_ref.actor.optim" or "critic.optim". Rank 0 warns when no
  // step of it can change a weight.
  LrScheduleOptions Schedule(const OptimSection& optim, const char* key, int64_t total_steps) const;

  // 3. The end. Whether this rank was asked to stop, and how many seconds ago; 0 where it was not.
  bool StopRequested() const;
  double SecondsSinceStop() const;
  // Since the job began, restarts included.
  double RunSeconds() const;

 private:
  const JobOptions options_;
  Logger& log_;
  at::Device device_;
  at::ScalarType dtype_;
  std::chrono::milliseconds deadline_;
  parallel::ParallelContext* context_ = nullptr;
  StepVote vote_;
  mutable const char* phase_ = "start";
  const std::chrono::nanoseconds job_start_;  // by the monotonic clock
};

}  // namespace keel::trainer
