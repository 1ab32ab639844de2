// SplitGeneration: responses from rollout workers, processes of their own.
//
// The desk, on rank 0, hands samples out and takes them back; weights go from one data-parallel
// replica of the trainers to each worker over a group of these ranks alone, a link, so that a
// worker that is lost breaks nothing but its link. Workers come and go while a step waits for its
// samples. Owned by the RL task. Methods are collective over all ranks that train.
#pragma once

#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "trainer/desk/desk.h"
#include "trainer/engine/train_engine.h"
#include "trainer/rl/generation.h"
#include "trainer/rl/sample_stream.h"
#include "trainer/run/job.h"
#include "trainer/sync/weight_sync.h"

namespace keel::trainer::rl {

// Where workers find the desk, in the job's store.
inline constexpr const char* kDeskKey = "desk/address";

class SplitGeneration : public Generation {
 public:
  // Starts the desk and says in the job's store where it is. `actor` must outlive this. `facts`:
  // what workers must have, too. `prompts`: those of the run, asked for on the desk's thread.
  SplitGeneration(Job& job, TrainEngine& actor, const WeightSyncOptions& sync,
                  std::map<std::string, std::string> facts, PromptAt prompts);
  ~SplitGeneration() override;

  std::string Description() const override;
  // Each worker looks for itself, and says so.
  Status CheckLengths(int64_t, int64_t) const override { return Status::Ok(); }
  void StartVerifiers() override {}

  WeightUpdate Update() override;
  WeightUpdate Restore(const WeightVersion& expected) override;
  const WeightVersion& version() const override { return version_; }

  // Workers begin samples of the run here, and go on beside the training: the ledger of a
  // checkpoint is gone on with.
  void Begin(const RunSamples& samples) override;
  std::vector<Response> Run(const RolloutOrder& order, RolloutTimes* times) override;
  void BeforeUpdate() override;
  void AddMetrics(StepLine* metrics) const override;
  void AddDocuments(std::vector<checkpoint::Document>* documents) const override;
  void RestoreDocuments(const std::map<std::string, std::string>& documents) override;

 private:
  // A worker's, on the trainers that send to it; null on the others.
  struct Link {
    std::unique_ptr<parallel::ProcessGroup> group;
    std::unique_ptr<WeightSync> sync;
  };
  // What became of a link on the ranks of its replica.
  struct LinkEnd {
    std::string problem;  // "": none
    uint64_t digest = 0;
  };

  // The text that rank 0 has, on every rank.
  std::string Hear(const std::string& text);
  // For each of `workers`, what `act` comes to on all ranks; those with a problem are dropped.
  std::map<int64_t, LinkEnd> OnLinks(const std::vector<int64_t>& workers,
                                     const std::function<LinkEnd(int64_t worker)>& act);
  void MakeLinks();
  // Sends the weights as `number`; the digest of what arrived, 0: nobody was there.
  uint64_t Push(const std::vector<int64_t>& workers, int64_t number, WeightUpdate* update);
  WeightUpdate Publish(int64_t number, uint64_t expected);
  // Throws on every rank what rank 0 has found.
  void Agree(const Status& status);
  void OpenValidation(const RolloutOrder& order);
  void WaitFor(desk::Stream stream, desk::Desk::For what);

  Job& job_;
  TrainEngine& actor_;
  const WeightSyncOptions sync_options_;
  std::unique_ptr<desk::Desk> desk_;       // rank 0
  std::unique_ptr<SampleStream> samples_;  // rank 0
  std::map<int64_t, Link> links_;          // by worker, the same on every rank
  WeightVersion version_;
  const PromptAt prompts_;
  double waited_s_ = 0;  // for samples, in the last step
};

}  // namespace keel::trainer::rl
