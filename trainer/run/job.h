// Job: this rank among the ranks of its job: device, connections, how models are made there, and
// how the job is stopped and left.
//
// Owns the job's store and groups; the task (task.h) owns models, data and the run's folder. Made
// and used by one thread. Methods are collective over all ranks unless they say otherwise.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <map>
#include <memory>
#include <string>

#include "checkpoint/base/coordinator.h"
#include "common/clock.h"
#include "common/log.h"
#include "parallel/context.h"
#include "parallel/hang_report.h"
#include "trainer/engine/lr_schedule.h"
#include "trainer/engine/train_engine.h"
#include "trainer/inputs/model_description.h"
#include "trainer/run/rank_agreement.h"
#include "trainer/run/store_coordinator.h"
#include "trainer/run/trainer_inputs.h"

namespace keel::trainer {

class Job {
 public:
  // Chooses the device, as far as this rank can. Not collective. Throws Error(kUnavailable) when it
  // is not there.
  Job(const TrainerInputs& inputs, Logger& log);

  const TrainerInputs& inputs() const { return inputs_; }
  const Config& config() const { return inputs_.loaded.config; }
  const ActorSection& actor() const { return config().actor_rollout_ref.actor; }
  Logger& log() { return log_; }
  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }
  std::chrono::milliseconds deadline() const { return deadline_; }  // of waits for a peer
  const char* phase() const { return phase_; }                      // the last one; not collective
  bool rank0() const { return inputs_.env.rank == 0; }
  // What this rank does, and in which step, for the launcher's messages. Not collective.
  void Phase(const char* phase, int64_t step) const;

  // 1. Store, then process groups. First of all the ranks compare what they were started with,
  // `facts` among it: Error(kConfig) on all of them where that differs. Then they agree on the kind
  // of device, which is the CPU where one of them has no GPU: device() is final from here on.
  void Connect(SharedFacts facts);
  parallel::ParallelContext& context() { return *context_; }
  checkpoint::Coordinator& coordinator() { return *coordinator_; }
  // A group of all ranks in order that carries host memory, where context().world() does not; null
  // where it does. To be shut down when it has served.
  std::unique_ptr<parallel::ProcessGroup> MakeHostGroup(const char* name) const;

  // What metrics say of the device's memory; nothing on a CPU. Not collective.
  std::map<std::string, double> DeviceMemory() const;

  // 2. Models. Options of an engine as the configuration has them, with the job's vote.
  TrainEngineOptions EngineOptions(const MegatronSection& megatron, const OptimSection& optim);
  StepVote& vote() { return vote_; }
  // The model's weights, or random ones where it has no directory, into an engine.
  void FillWeights(const ModelDescription& model, TrainEngine& engine);

  // 3. The end. Whether this rank was asked to stop, and how many seconds ago; 0 where it was not.
  // Not collective.
  bool StopRequested() const;
  double SecondsSinceStop() const;
  // Since the job began, restarts included. Not collective.
  double RunSeconds() const;
  // All ranks leave together.
  void Leave();
  // What the run ends on: `error`, or what was behind it on a device whose groups are lost, where a
  // host reads what is of no value and stumbles over it. Not collective.
  Status CauseOf(const std::exception& error) const;
  // The run ends on `error`, which may be that a peer hangs: what the ranks find out about which
  // one it is, to be added to the message; "" where there is nothing to say. Not collective.
  std::string WhoHangs(const std::exception& error) const;

  // Of the section `key`, "actor_rollout_ref.actor.optim" or "critic.optim". Rank 0 warns when no
  // step of it can change a weight.
  LrScheduleOptions Schedule(const OptimSection& optim, const char* key, int64_t total_steps) const;

 private:
  const TrainerInputs& inputs_;
  Logger& log_;
  const std::string offer_;  // what it could compute on: see parallel/device_choice.h
  at::Device device_;
  at::ScalarType dtype_;
  std::chrono::milliseconds deadline_;
  std::unique_ptr<parallel::Store> store_;
  std::unique_ptr<parallel::HangReport> hang_report_;
  std::unique_ptr<parallel::ParallelContext> context_;
  std::unique_ptr<StoreCoordinator> coordinator_;
  StepVote vote_;
  mutable const char* phase_ = "start";
  const std::chrono::nanoseconds job_start_;  // by the monotonic clock
  bool all_left_ = false;                     // the ranks have parted: none waits for another
};

}  // namespace keel::trainer
