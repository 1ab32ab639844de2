// The lines of the options table that say how one reward is computed, for the `reward` section and
// for each of `reward.functions`. Torch-free.
#pragma once

#include <string>

#include "common/options/schema.h"
#include "rewards/reward_options.h"

namespace keel::rewards {

// `prefix`: what stands before each key, "reward.". The section must outlive the schema.
void AddVerifierOptions(options::Schema& schema, const std::string& prefix,
                        VerifierSection& verifier);

}  // namespace keel::rewards
