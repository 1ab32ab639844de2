// Task: what a run learns from what. A task (lm_task.h, rl/dpo_task.h, rl/rl_task.h) says what its
// data, its models and its steps are; the runner (task_runner.h) takes it from its data to its last
// step.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/base/requests.h"
#include "common/hash.h"
#include "trainer/data/sample_order.h"
#include "trainer/inputs/model_description.h"

namespace keel::trainer {

class TrainEngine;

// What a task learns from, as far as the run must know it.
struct TaskData {
  struct Set {
    Digest128 digest;  // of all that a step sees of it
    int64_t size = 0;
    int64_t skipped_rows = 0;
    std::vector<SourceShare> mixture;   // empty where there is one source
    std::vector<std::string> warnings;  // what of the files was not read

    // `From`: SampleSet, PreferenceSet or PromptSet.
    template <typename From>
    static Set Of(const From& set) {
      Set made{set.digest(), set.size(), set.skipped_rows(), {}, set.warnings()};
      if constexpr (requires { set.mixture(); }) made.mixture = set.mixture();
      return made;
    }
  };
  Set train, val;
  const char* samples = "samples";  // what they are called: "pairs"
  // What else of the data all ranks must have alike, in a user's words, and its value.
  std::map<std::string, std::string> facts;
  EpochUnit epochs = EpochUnit::kSamples;
};

// Used from the training thread. Methods are collective over all ranks unless they say otherwise,
// and throw keel::Error. In the order in which they are called:
class Task {
 public:
  Task() = default;
  virtual ~Task() = default;
  Task(const Task&) = delete;
  Task& operator=(const Task&) = delete;

  // A model whose weights, and optimizer where it learns, a checkpoint holds.
  struct Role {
    std::string name;
    TrainEngine* engine = nullptr;
  };
  // Weights of the source, which a resumed run must have again. They never change, unless the
  // engine is a saved role's too; the digest is of those that the run began with.
  struct Reference {
    TrainEngine* engine = nullptr;
    uint64_t digest = 0;  // WeightsDigest
  };
  struct StepEnd {
    double loss = 0;
    double grad_norm = 0;
    const char* section = "actor_rollout_ref.actor";  // of the configuration: of whose model
  };
  using Documents = std::map<std::string, std::string>;

  // 1. The model, whose weights are not read yet, then samples that it fits. Bad input ends the run
  // here, before any connection. Not collective.
  virtual const ModelDescription& OpenModel() = 0;
  virtual TaskData LoadData() = 0;
  // 2. What the job's groups are there for.
  virtual void BuildModels() = 0;
  virtual std::vector<Role> SavedRoles() = 0;
  virtual Reference reference() { return {}; }
  // 3. What a task remembers beside RunState: these back, and its documents of a save, which rank 0
  // writes.
  virtual void RestoreDocuments(const Documents& /*documents*/) {}
  // Moments of optimizers came back, of a checkpoint of `step`: how many updates made those of
  // another role than the actor its documents say, or where they do not, its step.
  virtual void RestoreMoments(const Documents& /*documents*/, int64_t /*step*/) {}
  virtual void AddDocuments(checkpoint::SaveRequest* /*request*/) {}
  // Memory of a saved role is about to change, which no save reads any more. Not collective.
  virtual void BeforeWrite(const void* /*begin*/, size_t /*bytes*/) {}
  // 4. The state is that of the course's step, `restored` or fresh. Then the first step begins.
  virtual void Restored(bool /*restored*/) {}
  virtual void BeforeSteps() {}
  // 5. One step: learns, says so to the course (Advance, CountUpdates, EndTiming), and tells its
  // metrics. Nothing: before the step had changed anything the run was asked to stop, or what
  // WhyLeft says was missing, and it left the step.
  virtual std::optional<StepEnd> Step(int64_t step) = 0;
  // Of a step that was left: why the run has to end; ok where it was asked to.
  virtual Status WhyLeft() const { return Status::Ok(); }
  // Whether a save after a step that was left is one of the step before it.
  virtual bool SavesAfterLeftStep() const { return true; }
  // The value of trainer.keep_best_metric, if there is a finite one.
  virtual std::optional<double> Validate() = 0;
  // 6. All steps are done, and what is to be saved is.
  virtual void Finished() {}
};

}  // namespace keel::trainer
