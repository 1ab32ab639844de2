// A rank that generates and does not train: async_training.placement split.
//
// Some ranks together are a replica, a worker of the desk; its first rank speaks with the desk and
// tells the others what it hears. It makes its model, gets weights over a link, generates what it
// is assigned, has it scored, reports. It keeps nothing that would be missed: when it ends, others
// go on with its samples.
#pragma once

#include "common/log.h"
#include "trainer/config/config_async.h"
#include "trainer/run/trainer_inputs.h"

namespace keel::trainer::rl {

// `inputs.env`: of the whole job; of a worker that joins (inputs.join) that of its own launcher,
// and `roles` has workers alone. Until the desk says that the run is over, or the rank is told to
// stop. Throws keel::Error, which no trainer fails of.
RunEnd RunRolloutRank(const TrainerInputs& inputs, const JobRoles& roles, Logger& log);

}  // namespace keel::trainer::rl
