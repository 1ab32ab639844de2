// What the options of a StateCheckpointer are to the checkpointer below it. Torch-free.
#pragma once

#include "checkpoint/checkpointer.h"
#include "common/log.h"
#include "common/status.h"
#include "library/state.h"

namespace keel::library {

checkpoint::CheckpointOptions OptionsOf(const CheckpointerOptions& options);

LogOptions LogOptionsOf(const CheckpointerOptions& options);

// kConfig with all that is wrong with them, under the names that the caller gave.
Status CheckOptions(const CheckpointerOptions& options);

}  // namespace keel::library
