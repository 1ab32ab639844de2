// From the configuration to the rollout engine's options. Torch-free but for engine.h.
#pragma once

#include "common/log.h"
#include "parallel/tensor/arithmetic.h"
#include "rollout/engine.h"
#include "trainer/config/config.h"

namespace keel::trainer {

// Without EOS ids and tokenizer, which the model's files give. `longest`: of the
// model's LongestGenerated() (model/config/context_length.h), which bounds the default of
// max_model_len.
rollout::EngineOptions RolloutEngineOptions(const Config& config, int64_t longest);
// Of a training or a validation request; the seed is rollout.seed or trainer.seed.
rollout::SamplingParams TrainSampling(const Config& config);
rollout::SamplingParams ValSampling(const Config& config);

// How actor and reference compute: with rollout.batch_invariant so that training says of a token
// what the rollout said of it, to the bit. Warns where the layouts do not let it.
parallel::Arithmetic ActorArithmetic(const Config& config, Logger& log);

}  // namespace keel::trainer
