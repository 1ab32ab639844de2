// Job: what every task of a run shares: device, connections, run folder, saves, and how it ends.
//
// Owns the job's groups, checkpointer and metrics, and the state that all tasks have; the task
// (lm_task.h, rl/rl_task.h) owns models and data. Made and used by one thread. Methods are
// collective over all ranks unless they say otherwise.
#pragma once

#include <ATen/ATen.h>

#include <chrono>
#include <cstdint>
#include <exception>
#include <functional>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/checkpointer.h"
#include "common/clock.h"
#include "common/file_system.h"
#include "common/log.h"
#include "parallel/context.h"
#include "parallel/hang_report.h"
#include "trainer/engine/lr_schedule.h"
#include "trainer/engine/train_engine.h"
#include "trainer/inputs/model_source.h"
#include "trainer/run/metrics.h"
#include "trainer/run/rank_agreement.h"
#include "trainer/run/run_state.h"
#include "trainer/run/save_session.h"
#include "trainer/run/store_coordinator.h"
#include "trainer/run/trainer_inputs.h"

namespace keel::trainer {

class Job {
 public:
  // Chooses the device. Not collective. Throws Error(kUnavailable) when it is not there.
  Job(const TrainerInputs& inputs, Logger& log);

  const TrainerInputs& inputs() const { return inputs_; }
  const Config& config() const { return inputs_.loaded.config; }
  const ActorSection& actor() const { return config().actor_rollout_ref.actor; }
  Logger& log() { return log_; }
  at::Device device() const { return device_; }
  at::ScalarType dtype() const { return dtype_; }
  std::chrono::milliseconds deadline() const { return deadline_; }
  const char* phase() const { return phase_; }  // the last one; not collective
  bool rank0() const { return inputs_.env.rank == 0; }
  // What this rank does, for the launcher's messages. `step`: the one that goes on, if not the last
  // that is done. Not collective.
  void Phase(const char* phase, std::optional<int64_t> step = {}) const;
  // A folder that is no run's, or a checkpoint by name that is not there, ends the run before
  // anything else. Not collective.
  void CheckPaths() const;

  // 1. Store, then process groups. First of all the ranks compare what they were started with,
  // `facts` among it: Error(kConfig) on all of them where that differs.
  void Connect(SharedFacts facts);
  parallel::ParallelContext& context() { return *context_; }
  const parallel::Store& store() const { return *store_; }
  checkpoint::Coordinator& coordinator() { return *coordinator_; }

  // 2. Models. Options of an engine as the configuration has them.
  TrainEngineOptions EngineOptions(const MegatronSection& megatron,
                                   const OptimSection& optim) const;
  // The source's weights, or random ones, into an engine.
  void FillWeights(const ModelSource& source, TrainEngine& engine);

  // 3. The run's folder: this and the next part are in job_checkpoints.cc.
  void OpenCheckpoints();
  checkpoint::Checkpointer& checkpointer() { return *checkpointer_; }
  FileSystem& files() { return *fs_; }
  // The checkpoint that resume_mode asks for; nothing when there is none, or none is wanted.
  std::optional<checkpoint::LoadRecord> Load(checkpoint::LoadRequest request);
  // As the configuration says, but at a restart of the job kAuto once it has saved something, so
  // that no restart goes back to where the job began.
  ResumeKind resume_mode() const { return resume_mode_; }
  // After the load: of checkpoints that this run will write over, except those that it passed over.
  void WarnOfLaterSteps(const std::optional<checkpoint::LoadRecord>& loaded) const;
  // Rank 0's: config.yaml and the metrics. After the load, which says where the metrics go on.
  void OpenMetrics();
  MetricsWriter* metrics() { return metrics_.get(); }  // null on other ranks

  // 4. Saves. `snapshot` gives the state as it is at the call.
  using Snapshot = std::function<checkpoint::SaveRequest()>;
  void set_snapshot(Snapshot snapshot) { snapshot_ = std::move(snapshot); }
  // Step, contents, layout and configuration; the task adds roles and its documents.
  checkpoint::SaveRequest NewSaveRequest(const ModelSource& source) const;
  // What the first save would otherwise pay for, and whether the disk will hold what is to be kept.
  void PrepareSaves(int64_t total_steps);
  bool SaveDue(bool last) const;
  // A failed save does not stop the run: the last good checkpoint is untouched.
  void Save(bool busy_somewhere);
  // Before the run ends: returns when the step is on the disk, or when it cannot be any more.
  void SaveLast(bool finished);
  bool saving() const { return saves_->busy(); }
  // On any rank, now.
  bool SavingSomewhere();
  // The run ends on `error`, which may be that a peer hangs: what the ranks find out about which
  // one it is, to be added to the message; "" where there is nothing to say. Not collective.
  std::string WhoHangs(const std::exception& error) const;
  // The run ends on an error: a save that is under way gets its chance, and reads nothing any more
  // afterwards. Where it does not end, the process does, with `cause`, the error. Not collective.
  void EndSaves(const std::exception& cause);
  // A step that took `seconds` is over.
  void AfterStep(double seconds) { NoteSaves(saves_->AfterStep(seconds)); }
  // Seconds for which the last save blocked, once.
  double TakeBlockedSeconds() { return std::exchange(blocked_s_, 0.0); }

  // 5. The end. What this rank knows of a wish to stop, or of trainer.max_failed_saves; rank 0's
  // view of the run time. Not collective: all ranks hear of it with the step.
  bool WantsToStop(double mean_step_s, double validation_s) const;
  // All is saved that can be, and all ranks leave together.
  void Finish();
  RunEnd Preempted();

  // Of the section `key`, "actor_rollout_ref.actor.optim" or "critic.optim". Rank 0 warns when no
  // step of it can change a weight.
  LrScheduleOptions Schedule(const OptimSection& optim, const char* key, int64_t total_steps) const;

  RunState state;

 private:
  void AddFacts(SharedFacts* facts) const;
  void CheckOneFolder();
  // Of settings by which checkpoints or weights are lost. Rank 0.
  void WarnOfLosses() const;
  void WarnOfGrowth(const checkpoint::DiskForecast& disk, int64_t total_steps) const;
  ResumeKind ResumeMode();
  std::optional<checkpoint::LoadRecord> LoadFromPath(checkpoint::LoadRequest& request);
  void NoteOrigin(const checkpoint::LoadRecord& loaded) const;
  bool StopRequested() const;
  bool TooManySavesFailed() const;
  bool FitsIntoGrace();
  void NoteSaves(const std::vector<checkpoint::SaveResult>& ended);

  const TrainerInputs& inputs_;
  Logger& log_;
  at::Device device_;
  at::ScalarType dtype_;
  std::chrono::milliseconds deadline_;
  std::unique_ptr<parallel::Store> store_;
  std::unique_ptr<parallel::HangReport> hang_report_;
  std::unique_ptr<parallel::ParallelContext> context_;
  std::unique_ptr<FileSystem> fs_;
  std::unique_ptr<StoreCoordinator> coordinator_;
  checkpoint::CheckpointOptions options_;
  std::unique_ptr<checkpoint::Checkpointer> checkpointer_;
  std::unique_ptr<SaveSession> saves_;
  std::unique_ptr<MetricsWriter> metrics_;  // rank 0
  ResumeKind resume_mode_ = ResumeKind::kAuto;
  mutable const char* phase_ = "start";
  Snapshot snapshot_;
  const std::chrono::nanoseconds job_start_;  // by the monotonic clock
  double blocked_s_ = 0;                      // of the last save, until the next step's metrics
  bool all_left_ = false;                     // the ranks have parted: none waits for another
};

}  // namespace keel::trainer
