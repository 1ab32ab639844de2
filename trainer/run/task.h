// Task: what a run learns from what, and the way that every task goes from its data to its last
// step: data, models, run folder, resume, then step by step with validation, saves and preemption.
//
// A task (lm_task.h, rl/dpo_task.h, rl/rl_task.h) gives what differs: its data, its models, and
// what a step is. Made and used by one thread. Methods are collective over all ranks unless they
// say otherwise.
#pragma once

#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <utility>
#include <vector>

#include "common/clock.h"
#include "common/hash.h"
#include "trainer/data/sample_order.h"
#include "trainer/engine/train_engine.h"
#include "trainer/inputs/model_description.h"
#include "trainer/run/job.h"
#include "trainer/run/run_folder.h"
#include "trainer/run/run_state.h"

namespace keel::trainer {

class Task {
 public:
  // `job` must outlive this.
  explicit Task(Job& job) : job_(job), c_(job.config()) {}
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // From the data to the last step. Throws keel::Error.
  RunEnd Run();

 protected:
  // A model whose weights and optimizer a checkpoint holds.
  struct Role {
    std::string name;
    TrainEngine* engine = nullptr;
  };
  struct StepEnd {
    double loss = 0;
    double grad_norm = 0;
  };
  using Documents = std::map<std::string, std::string>;

  // 1. The model, whose weights are not read yet, then samples that it fits: calls TakeData and
  // sets total_steps_. Bad input ends the run here, before any connection. Not collective.
  virtual const ModelDescription& OpenModel() = 0;
  virtual void LoadData() = 0;
  // 2. What the job's groups are there for.
  virtual void BuildModels() = 0;
  virtual std::vector<Role> SavedRoles() = 0;
  // 3. What a task remembers beside RunState: its documents of a save, which rank 0 writes, and
  // these back.
  virtual void AddDocuments(checkpoint::SaveRequest* /*request*/) {}
  virtual void RestoreDocuments(const Documents& /*documents*/) {}
  // Memory of a saved role is about to change, which no save reads any more. Not collective.
  virtual void BeforeWrite(const void* /*begin*/, size_t /*bytes*/) {}
  // 4. The state is that of step state_.step, `restored` or fresh. Then the first step begins.
  virtual void Restored(bool /*restored*/) {}
  virtual void BeforeSteps() {}
  // 5. One step: learns, counts (Advance, CountUpdates, EndTiming), and writes its metrics.
  virtual StepEnd Step(int64_t step) = 0;
  // The value of trainer.keep_best_metric, if there is a finite one.
  virtual std::optional<double> Validate() = 0;
  // 6. All steps are done, and what is to be saved is.
  virtual void Finished() {}

  // For LoadData. The data of the run, and so the order and identity of its samples. `Set`:
  // SampleSet, PreferenceSet or PromptSet.
  template <typename Set>
  void TakeData(const Set& train, const Set& val) {
    WarnOfData(model_->warnings);
    WarnOfData(train.warnings());
    WarnOfData(val.warnings());
    SetValidation(val.digest(), val.size());
    if constexpr (requires { train.mixture(); }) {
      if (!train.mixture().empty()) return SetData(train.digest(), train.mixture());
    }
    SetData(train.digest(), train.size());
  }
  // After SetSteps: how many of `samples`, "pairs", there are.
  template <typename Set>
  void SayData(const char* samples, const Set& train, const Set& val) const {
    job_.log().Info("data: {} {} to train on, {} to validate on, {} rows left out; {} steps",
                    train.size(), samples, val.size(), train.skipped_rows(), total_steps_);
  }
  // What else of the data all ranks must have alike.
  void AddFact(const std::string& name, std::string value) { facts_[name] = std::move(value); }
  // Sets total_steps_ as total_training_steps or total_epochs say.
  void SetSteps();
  // For BuildModels. Weights of the source, which never change, and which a resumed run must have
  // again, with their WeightsDigest. Must outlive the run.
  void SetReference(TrainEngine& reference, uint64_t digest);

  // For Restored, of tasks that take every sample of total_epochs once: the steps that what is left
  // takes, which are others where train_batch_size is another than before.
  void RecountSteps();
  // For Step. How many samples this one takes: train_batch_size, of epochs at the end what is left.
  int64_t BatchCount() const;
  // The step has happened.
  void Advance(int64_t step, int64_t samples, int64_t tokens);
  // What the updates of a step came to; skipped ones had a loss or a norm that is not finite.
  struct UpdateCounts {
    int64_t applied = 0, skipped = 0;
    bool stuck() const { return applied == 0 && skipped > 0; }
  };
  // A step in which the one or the other got nowhere is no step forward.
  void CountUpdates(UpdateCounts actor, UpdateCounts critic);
  // Seconds of the step up to here, by which the rest of the run is forecast.
  double EndTiming();
  // Rank 0's; null on others.
  MetricsWriter* metrics() { return folder_->metrics(); }
  // Seconds for which the last save blocked, once.
  double TakeBlockedSeconds() { return std::exchange(blocked_s_, 0.0); }
  void Phase(const char* phase) const { job_.Phase(phase, state_.step); }
  // For the console, after Advance.
  StepProgress Progress(bool skipped) const {
    return {state_.step, total_steps_,
            mean_step_s_ * static_cast<double>(total_steps_ - state_.step), skipped};
  }

  Job& job_;
  const Config& c_;
  const ModelDescription* model_ = nullptr;  // OpenModel's
  RunState state_;
  std::unique_ptr<SampleOrder> order_;
  int64_t total_steps_ = 0;

 private:
  RunEnd Main();
  void WarnOfData(const std::vector<std::string>& warnings) const;
  void SetData(const Digest128& digest, int64_t samples);
  void SetData(const Digest128& digest, const std::vector<SourceShare>& sources);
  void SetValidation(const Digest128& digest, int64_t samples);
  void CheckRoom();
  SharedFacts Facts() const;
  void OpenFolder();
  void Resume();
  std::optional<checkpoint::LoadRecord> Load(checkpoint::LoadRequest request);
  void SayWhatChanged(const Documents& documents) const;
  RunEnd Loop();
  RunEnd Preempted();
  void Finish(bool settle);  // as in Checkpointer::Close
  bool WantsToStop() const;
  void CountVotes();
  bool SaveIsDue(bool last) const;
  void CheckReplicas(const std::string& when);
  void RunValidation();
  void SaveUnlessDiverging();
  void SaveLast(bool finished);
  void CheckSkips(const StepEnd& end) const;
  checkpoint::SaveRequest Snapshot();

  std::unique_ptr<RunFolder> folder_;
  std::string room_ = "The run's state was not yet made";  // what takes memory, for messages
  DataIdentity identity_;
  SharedFacts facts_;                     // of the data, for the comparison between ranks
  std::optional<int64_t> total_samples_;  // of total_epochs
  TrainEngine* reference_ = nullptr;      // of SetReference
  uint64_t ref_digest_ = 0;
  Stopwatch step_watch_;
  double step_s_ = 0;
  double mean_step_s_ = 0;
  double validation_s_ = 0;                              // the last one's
  std::optional<std::pair<int64_t, double>> validated_;  // step and value
  double blocked_s_ = 0;    // by the last save, until the next step's metrics
  bool save_owed_ = false;  // one was due while updates were being skipped
};

}  // namespace keel::trainer
