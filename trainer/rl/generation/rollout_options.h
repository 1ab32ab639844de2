// The engine of a rollout replica, as the configuration and the model's files have it.
#pragma once

#include <string>

#include "common/status.h"
#include "rollout/engine.h"
#include "trainer/config/config.h"
#include "trainer/inputs/model_source.h"
#include "trainer/inputs/run_turns.h"
#include "trainer/run/shared_facts.h"

namespace keel::trainer::rl {

// Ranks that share each layer in generation.
int RolloutTp(const Config& config);
// `source`, whose tokenizer the engine reads, must outlive it.
rollout::EngineOptions EngineOptionsOf(const Config& config, const ModelSource& source);

// What a worker and the desk must have in common; `turns` may be null.
SharedFacts RolloutFacts(const LoadedConfig& loaded, at::Device device, const ModelSource& source,
                         const RunTurns* turns);

// What to do where a prompt and a response of the longest do not fit, as `why` says.
std::string KvCacheAdvice(const Status& why, const Config& config);

}  // namespace keel::trainer::rl
