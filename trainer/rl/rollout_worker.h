// RolloutWorker: responses to prompts from all rollout replicas, scored, on every rank.
//
// Prompts are dealt out to replicas in turn; a response depends on the prompt's position in the run
// and its sample number alone, so the replicas' number changes nothing. Verifiers run on threads of
// each replica's first rank while it goes on generating. Owned by the RL task.
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "model/tokenizer/tokenizer.h"
#include "parallel/context.h"
#include "rewards/reward_pool.h"
#include "trainer/config/config_rl.h"
#include "trainer/data/prompt_data.h"
#include "trainer/data/rollout_batch.h"
#include "trainer/sync/rollout_model.h"

namespace keel::trainer::rl {

struct RolloutPrompt {
  int64_t position = 0;  // of the run; also names the random stream
  const Prompt* prompt = nullptr;
};

struct RolloutOrder {
  std::span<const RolloutPrompt> prompts;
  int64_t n = 1;  // responses to each
  rollout::SamplingParams sampling;
  bool greedy_baseline = false;  // one more to each, the likeliest: its score is their baseline
  bool texts = false;            // somebody will read them: a dump, or a vote without answers
};

struct RolloutTimes {
  double generate_s = 0;
  double reward_s = 0;  // waited for verifiers after the last token
  rollout::EngineStats engine;
};

class RolloutWorker {
 public:
  // Throws Error(kConfig) when the reward section cannot be used.
  RolloutWorker(RolloutModel& model, parallel::ParallelContext& context,
                const rewards::RewardSection& reward, const model::Tokenizer* tokenizer,
                at::Device device);
  ~RolloutWorker();

  // Starts the verifiers, so that a program or an address that does not work is heard of before
  // anything is generated. Throws Error(kConfig) on every rank, naming the first that cannot.
  // Collective over all ranks.
  void StartVerifiers();

  // Throws Error(kDataLoss) where a response could not be generated. Collective over all ranks; the
  // same on every rank, but for text and answer, which rank 0 alone
  // has, and that only where they are asked for.
  std::vector<Response> Run(const RolloutOrder& order, RolloutTimes* times);

  // The responses of a step that an earlier run dumped. Throws on every rank what one of them finds
  // wrong with its file, and where files are not the same. Collective over all ranks.
  RolloutBatch Replay(const std::string& path, const DumpShape& shape);

 private:
  // This replica's responses for those of all. Collective over all ranks.
  std::vector<Response> Exchange(std::vector<Response> mine, std::span<const RolloutPrompt> prompts,
                                 bool texts);

  RolloutModel& model_;
  parallel::ParallelContext& context_;
  const rewards::RewardSection& reward_;
  const model::Tokenizer* tokenizer_;
  const at::Device device_;
  std::unique_ptr<rewards::RewardPool> pool_;  // on ranks that lead a replica
};

}  // namespace keel::trainer::rl
