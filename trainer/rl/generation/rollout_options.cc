#include "trainer/rl/generation/rollout_options.h"

#include <fmt/format.h>

#include "model/config/context_length.h"
#include "rewards/reward_functions.h"
#include "trainer/sync/rollout_settings.h"

namespace keel::trainer::rl {

int RolloutTp(const Config& config) { return static_cast<int>(ReplicaRanks(config)); }

rollout::EngineOptions EngineOptionsOf(const Config& config, const ModelSource& source) {
  rollout::EngineOptions options =
      RolloutEngineOptions(config, model::LongestGenerated(source.config).tokens);
  options.eos_token_ids = StopTokens(source);
  options.tokenizer = source.tokenizer.get();
  return options;
}

SharedFacts RolloutFacts(const LoadedConfig& loaded, at::Device device, const ModelSource& source,
                         const RunTurns* turns) {
  SharedFacts facts = WorkerFacts(loaded, device, source);
  if (turns != nullptr) {
    facts["the tools"] = "digest " + ToolsDigest(*turns);
    facts["the chat template"] = ChatFingerprint(source);
  }
  facts.merge(ValueOrThrow(rewards::RewardFileDigests(loaded.config.reward)));
  return facts;
}

std::string KvCacheAdvice(const Status& why, const Config& config) {
  return fmt::format(
      "{}: raise actor_rollout_ref.rollout.kv_cache_megabytes (on CUDA also "
      "gpu_memory_utilization), or lower data.max_prompt_length {} or data.max_response_length {}",
      why.message(), config.data.max_prompt_length, config.data.max_response_length);
}

}  // namespace keel::trainer::rl
