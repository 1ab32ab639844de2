// keel score, as asked for on the command line. Its flags are in score_flags.cc, which needs no
// torch; its work is in the keel_torch module.
#pragma once

#include <string>

namespace keel::tools {

struct ScoreArguments {
  std::string model, input, output, logits, dtype;
};

// Throws keel::Error.
void Score(const ScoreArguments& arguments);

}  // namespace keel::tools
