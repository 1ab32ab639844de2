// keel generate, as asked for on the command line. Its flags are in generate_flags.cc, which needs
// no torch; its work is in the keel_torch module.
#pragma once

#include <cstdint>
#include <string>

#include "rollout/sampling.h"

namespace keel::tools {

struct GenerateArguments {
  std::string model, input, output, dtype;
  rollout::SamplingParams sampling;
  int64_t samples = 1;
  bool log_probs = false;
  int64_t max_num_seqs = 256;
  int64_t cache_megabytes = 0;
};

// Throws keel::Error.
void Generate(const GenerateArguments& arguments);

}  // namespace keel::tools
