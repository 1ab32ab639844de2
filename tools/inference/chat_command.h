// keel chat, as asked for on the command line. Its flags are in chat_flags.cc, which needs no
// torch; its work is in the keel_torch module.
#pragma once

#include <cstdint>
#include <string>

#include "parallel/launch_env.h"
#include "rollout/sampling.h"

namespace keel::tools {

struct ChatArguments {
  std::string model, base, dtype, system;
  std::string device = "auto";
  rollout::SamplingParams sampling;
  int64_t tp = 0;           // ranks that share the model; 0: those of the launcher, or one
  parallel::LaunchEnv env;  // who this one is of them
};

// Answers each line of standard input on standard output, as it is generated, until the end of the
// input. Throws keel::Error.
void Chat(const ChatArguments& arguments);

}  // namespace keel::tools
