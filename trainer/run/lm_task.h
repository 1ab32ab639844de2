// Pre-training and SFT: the task that learns to predict tokens of given texts.
#pragma once

#include "trainer/run/job.h"

namespace keel::trainer {

// From data to the last step. Collective over all ranks. Throws keel::Error.
RunEnd RunLmTask(Job& job);

}  // namespace keel::trainer
