// Trainer: a run of any task from start to end, on one rank.
//
// Owns everything of the run; made and used by one thread. Run is collective over all ranks.
#pragma once

#include "common/log.h"
#include "trainer/run/trainer_inputs.h"

namespace keel::trainer {

// Throws keel::Error; see common/status.h for what becomes of it.
RunEnd RunTraining(const TrainerInputs& inputs, Logger& log);

}  // namespace keel::trainer
