// RunFolder: the folder of a run (trainer.default_local_dir): the checkpoint that the run begins
// with, its saves, and its metrics.
//
// Owns the checkpointer, the saves and, on rank 0, the metrics. Knows neither models nor groups.
// Used from the training thread. Methods are collective over the coordinator's ranks unless they
// say otherwise.
#pragma once

#include <sys/types.h>

#include <chrono>
#include <cstddef>
#include <cstdint>
#include <exception>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "checkpoint/base/coordinator.h"
#include "checkpoint/checkpointer.h"
#include "common/clock.h"
#include "common/files/file_system.h"
#include "common/log.h"
#include "trainer/config/config.h"
#include "trainer/metrics/metrics_writer.h"
#include "trainer/run/run_state.h"
#include "trainer/run/save_session.h"

namespace keel::trainer {

struct RunFolderOptions {
  std::chrono::milliseconds deadline{120'000};  // of every wait for a peer
  // Where the state lives: a save of what is not on a CPU takes all of it through host memory.
  std::string device = "cpu";
  int restart_count = 0;          // of this job, by its launcher or its batch system
  SpanRecorder* spans = nullptr;  // where saves are recorded; may be null
  // What a validation's value depends on beside the weights: values of others are not compared.
  ReadContents judged_by = {};
};

class RunFolder {
 public:
  // All must outlive this. Not collective.
  RunFolder(std::unique_ptr<FileSystem> files, const LoadedConfig& config,
            checkpoint::Coordinator& coordinator, Logger& log, const RunFolderOptions& options);

  // 1. The beginning. Once, before all else: takes the folder and decides where the run begins.
  // Throws on every rank where one of them saves to another folder than rank 0.
  void Open();
  // As the configuration says, but at a restart of the job kAuto once it has saved something, so
  // that no restart goes back to where the job began.
  ResumeKind resume_mode() const { return resume_mode_; }
  // What is to be loaded of it: as the configuration says, and all that was saved then.
  checkpoint::Contents load_contents() const;
  bool resumes() const { return resume_mode_ != ResumeKind::kDisable; }
  // The same command, started again, goes on from what this one has saved.
  bool next_start_goes_on() const;
  // The checkpoint that resume_mode asks for; nothing when there is none. Only where it resumes().
  std::optional<checkpoint::LoadRecord> Load(checkpoint::LoadRequest request);
  // The run goes on from `step`, with `loaded` or anew: config.yaml and the metrics, and a warning
  // of checkpoints of later steps, which this run will write over. On rank 0.
  void Begin(int64_t step, const std::optional<checkpoint::LoadRecord>& loaded);
  const RunStart* start() const { return start_ ? &*start_ : nullptr; }  // likewise
  MetricsWriter* metrics() { return metrics_.get(); }  // null on other ranks, and before Begin

  // 2. Saves. What the first of them would otherwise pay for, and whether the disk will hold what
  // is to be kept up to `last_step`.
  void Prepare(const checkpoint::SaveRequest& request, int64_t last_step);
  SaveSession& saves() { return saves_; }
  const SaveSession& saves() const { return saves_; }
  // As Checkpointer::WaitFree. Not collective; any thread.
  void WaitFree(const void* begin, size_t bytes) { (void)checkpointer_->WaitFree(begin, bytes); }
  double expected_save_s() const { return checkpointer_->expected_save_s(); }
  // Step `step` took `seconds`: the saves that ended since go into the metrics. Not collective.
  void AfterStep(int64_t step, double seconds) { Tell(step, saves_.AfterStep(seconds)); }
  // Waits for the save in flight on this rank. Not collective.
  void FinishSaves(int64_t step) { Tell(step, saves_.Finish()); }
  // trainer.max_failed_saves. Not collective.
  bool TooManySavesFailed() const;
  // Whether a save, as long as past ones, ends before whoever asked this rank to stop, `waited`
  // seconds ago, loses patience. The rank that was asked first counts.
  bool FitsIntoGrace(int64_t step, double waited);

  // The save before the end took `seconds`, which no step tells of. Not collective.
  void NoteLastSave(double seconds);

  // 3. The end. All is saved that can be. `settle` as in Checkpointer::Close.
  void Close(int64_t step, bool settle = false);
  // What this start came to, on rank 0's console; `stopped`: before the last step. After Close. Not
  // collective.
  void TellSummary(int64_t total_steps, bool stopped);
  // Whether the state of `step`, the last, is saved, where the run saves. Not collective.
  Status LastSave(int64_t step) const;
  // The run ends on an error: a save that is under way gets its chance, and reads nothing any more
  // afterwards. Where it does not end, the process does, with `cause`, the error. Nothing else may
  // be called after it. Not collective.
  void Abandon(const std::exception& cause);

 private:
  const TrainerSection& trainer() const { return loaded_.config.trainer; }
  const CheckpointSection& section() const {
    return loaded_.config.actor_rollout_ref.actor.checkpoint;
  }
  bool rank0() const { return coordinator_.rank() == 0; }
  void DecideResume();
  std::optional<checkpoint::LoadRecord> LoadFromPath(checkpoint::LoadRequest& request);
  void NoteOrigin(const checkpoint::LoadRecord& loaded) const;
  void WarnOfLosses() const;
  void WarnOfLaterSteps(int64_t step, const std::optional<checkpoint::LoadRecord>& loaded) const;
  void WarnOfGrowth(const checkpoint::DiskForecast& disk, int64_t step, int64_t last_step) const;
  void WarnIfMoved();
  bool KeepGivenConfig();
  std::string PrometheusPath() const;
  void OpenMetrics(const RunStart& start);
  std::string TensorboardFolder() const;
  void Tell(int64_t step, const std::vector<checkpoint::SaveResult>& ended);

  const std::unique_ptr<FileSystem> files_;
  const LoadedConfig& loaded_;
  checkpoint::Coordinator& coordinator_;
  Logger& log_;
  const RunFolderOptions options_;
  const checkpoint::CheckpointOptions checkpoints_;
  std::unique_ptr<checkpoint::Checkpointer> checkpointer_;
  SaveSession saves_;
  std::unique_ptr<MetricsWriter> metrics_;           // rank 0
  std::optional<std::pair<dev_t, ino_t>> began_in_;  // rank 0: until it has been moved
  std::optional<RunStart> start_;                    // rank 0
  ResumeKind resume_mode_ = ResumeKind::kAuto;
  bool elsewhere_ = false;  // resume_from_path is in another folder
  bool goes_on_ = false;    // a restart, from what its job has saved
};

}  // namespace keel::trainer
