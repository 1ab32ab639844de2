// RL: the task that learns from rewards on its own responses (GRPO, PPO and their family).
#pragma once

#include "trainer/run/job.h"

namespace keel::trainer::rl {

// From prompts to the last step. Collective over all ranks. Throws keel::Error.
RunEnd RunRlTask(Job& job);

}  // namespace keel::trainer::rl
