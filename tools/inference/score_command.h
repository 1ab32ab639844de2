// keel score, as asked for on the command line. Its flags are in score_flags.cc, which needs no
// torch; its work is in the keel_torch module.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/launch_env.h"

namespace keel::tools {

struct ScoreArguments {
  std::string model, base, input, output, logits, dtype;
  std::string device = "auto";
  int64_t tp = 0;           // ranks that share the model; 0: those of the launcher, or one
  parallel::LaunchEnv env;  // who this one is of them
};

// Throws keel::Error.
void Score(const ScoreArguments& arguments);

}  // namespace keel::tools
