// Direct preference optimization: the task that learns from pairs of answers, beside a frozen copy
// of the model it began with.
#pragma once

#include "trainer/run/job.h"

namespace keel::trainer::rl {

// From data to the last step. Collective over all ranks. Throws keel::Error.
//
// The reference is actor_rollout_ref.model as it is loaded or drawn at the start of every run; it
// is in no checkpoint, so a resumed run takes it from the same place.
RunEnd RunDpoTask(Job& job);

}  // namespace keel::trainer::rl
