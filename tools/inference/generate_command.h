// keel generate, as asked for on the command line. Its flags are in generate_flags.cc, which needs
// no torch; its work is in the keel_torch module.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/launch_env.h"
#include "rollout/sampling.h"

namespace keel::tools {

struct GenerateArguments {
  std::string model, base, input, output, dtype;
  std::string device = "auto";
  rollout::SamplingParams sampling;
  int64_t samples = 1;
  bool log_probs = false;
  int64_t max_num_seqs = 256;
  int64_t cache_megabytes = 0;
  bool enforce_eager = false;
  int64_t tp = 0;           // ranks that share the model; 0: those of the launcher, or one
  parallel::LaunchEnv env;  // who this one is of them
};

// Throws keel::Error.
void Generate(const GenerateArguments& arguments);

}  // namespace keel::tools
