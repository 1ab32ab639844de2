// SplitGeneration: responses from rollout workers, processes of their own.
//
// The desk, on rank 0, hands samples out and takes them back; WeightPublisher sends weights. With
// max_staleness above 0 it does so beside the next step, whose first update waits for it. Workers
// come and go while a step waits for its samples. Owned by the RL task. Methods are collective over
// all ranks that train.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "trainer/desk/desk.h"
#include "trainer/desk/desk_client.h"
#include "trainer/engine/train_engine.h"
#include "trainer/rl/generation/generation.h"
#include "trainer/rl/generation/sample_stream.h"
#include "trainer/rl/generation/weight_publisher.h"
#include "trainer/run/job.h"
#include "trainer/run/trainer_inputs.h"

namespace keel::trainer::rl {

// Where workers find the desk, in the job's store.
inline constexpr const char* kDeskKey = "desk/address";

// What the workers of a split run are given, and must have.
struct SplitInputs {
  std::map<std::string, std::string> facts;     // that workers must have, too
  std::function<PromptAt()> make_prompts;       // the prompts of the run, for one thread each
  const model::Tokenizer* tokenizer = nullptr;  // of texts that a checkpoint has not; or null
};

class SplitGeneration : public Generation {
 public:
  // Starts the desk and says in the job's store where it is. The first three must
  // outlive this, and the tokenizer.
  SplitGeneration(Job& job, const TrainerInputs& inputs, TrainEngine& actor,
                  const WeightSyncOptions& sync, SplitInputs split);
  ~SplitGeneration() override;

  std::string Description() const override;
  // Each worker looks for itself, and says so.
  Status CheckLengths(int64_t, int64_t) const override { return Status::Ok(); }
  void StartVerifiers() override {}

  WeightUpdate Update() override;
  WeightUpdate Restore(const WeightVersion& expected) override;
  const WeightVersion& version() const override { return publisher_->version(); }
  const WeightVersion& proved() const override { return publisher_->proved(); }
  void BeforeWrite(const void* begin, size_t bytes) override {
    publisher_->BeforeWrite(begin, bytes);
  }

  // Workers begin samples of the run here, and go on beside the training: the ledger of a
  // checkpoint is gone on with.
  bool Begin(const RunSamples& samples) override;
  bool Await(RolloutTimes* times) override;
  const Status& gave_up() const override { return gave_up_; }
  std::optional<std::vector<Response>> Run(const RolloutOrder& order, RolloutTimes* times) override;
  bool BeforeUpdate() override;
  bool LeaveStep() override {
    if (samples_) samples_->Leave();
    return MayLeaveStep();
  }
  void AddMetrics(StepLine* metrics) const override;
  void Finish() override {
    if (desk_ != nullptr) desk_->Finish();
  }
  void AddDocuments(std::vector<checkpoint::Document>* documents) const override;
  void RestoreDocuments(const std::map<std::string, std::string>& documents,
                        const std::vector<std::string>& changed) override;

 private:
  // The text that rank 0 has, on every rank.
  std::string Hear(const std::string& text);
  // Throws on every rank what rank 0 has found.
  void Agree(const Status& status);
  // In the log and in the run's folder, for those that look for the desk.
  void SayWhere();
  void OpenValidation(const RolloutOrder& order);
  // False, only of what `can_be_left`: there is no worker, and the run was asked to stop, or there
  // has been none for trainer.deadline_seconds: gave_up_ says which.
  bool WaitFor(desk::Stream stream, desk::Desk::For what, bool can_be_left = false);
  // Whether a step may wait once more after it has taken samples.
  bool MayLeaveStep() const;
  // The step's samples, or the validation's, from the desk. On rank 0.
  Result<std::vector<Response>> Take(const RolloutOrder& order);

  Job& job_;
  const TrainerInputs& inputs_;
  desk::DeskAddress address_;              // rank 0
  bool said_where_ = false;                // in the run's folder
  std::unique_ptr<desk::Desk> desk_;       // rank 0
  std::unique_ptr<SampleStream> samples_;  // rank 0
  std::unique_ptr<WeightPublisher> publisher_;
  const PromptAt desks_prompts_;  // asked for on the desk's thread
  const PromptAt prompts_;
  const model::Tokenizer* const tokenizer_;
  bool begun_ = true;    // false: as of Begin
  double waited_s_ = 0;  // for samples, in the last step
  Status gave_up_;
};

}  // namespace keel::trainer::rl
