// ColocatedGeneration: the ranks that train generate, too.
//
// Prompts are dealt out to replicas in turn; a response depends on the prompt's position in the run
// and its sample number alone, so the replicas' number changes nothing. Verifiers run on threads of
// each replica's first rank while it goes on generating. Owned by the RL task.
#pragma once

#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "parallel/groups/context.h"
#include "parallel/store/peer_progress.h"
#include "trainer/data/prompt_data.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/rl/generation/generation.h"
#include "trainer/rl/generation/sample_runner.h"
#include "trainer/sync/rollout_model.h"

namespace keel::trainer::rl {

class ColocatedGeneration : public Generation {
 public:
  // Throws Error(kConfig) when the reward section cannot be used.
  ColocatedGeneration(std::unique_ptr<RolloutModel> model, parallel::ParallelContext& context,
                      const SampleRunnerOptions& options, std::chrono::milliseconds deadline);
  ~ColocatedGeneration() override;

  std::string Description() const override;
  Status CheckLengths(int64_t prompt, int64_t response) const override {
    return model_->engine().CheckLengths(prompt, response);
  }
  void StartVerifiers() override;

  WeightUpdate Update() override { return model_->Update(); }
  WeightUpdate Restore(const WeightVersion& expected) override { return model_->Restore(expected); }
  const WeightVersion& version() const override { return model_->version(); }
  void Corrupt() override { model_->Corrupt(); }
  double Prepare() override { return model_->Prepare(); }
  double Leave() override { return model_->Leave(); }
  void ReleaseWeights() override { model_->ReleaseWeights(); }

  std::optional<std::vector<Response>> Run(const RolloutOrder& order, RolloutTimes* times) override;
  // Of a split run's checkpoint: throws Error(kConfig) where steps have taken positions out of
  // turn; samples that it holds are generated again, with a warning that counts them.
  void RestoreDocuments(const std::map<std::string, std::string>& documents,
                        const std::vector<std::string>& changed) override;

 private:
  bool AnyLeft();

  const std::unique_ptr<RolloutModel> model_;
  parallel::ParallelContext& context_;
  const at::Device device_;
  const std::function<void(const std::string& text)> warn_;
  SampleRunner runner_;
  parallel::PeerProgress progress_;
};

}  // namespace keel::trainer::rl
