// keel train and keel rollout, as asked for on the command line. Its flags are in train_flags.cc,
// which needs no torch; its work is in the keel_torch module.
#pragma once

#include <string>

#include "tools/stop_signals.h"
#include "trainer/config/config.h"

namespace keel::tools {

struct TrainArguments {
  trainer::LoadedConfig loaded;
  std::string join;  // keel rollout: the desk to generate for, "HOST:PORT"; else empty
};

// Returns the exit code. Throws keel::Error. `stop` outlives the process.
int Train(const TrainArguments& arguments, const StopState& stop);

}  // namespace keel::tools
