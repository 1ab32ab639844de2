// From the configuration's `reward` section to verifiers. Torch-free.
#pragma once

#include <string>

#include "common/status.h"
#include "rewards/reward_options.h"
#include "rewards/reward_pool.h"

namespace keel::rewards {

// Makes a verifier per call. kConfig when the section cannot be used; nothing is started yet.
Result<RewardPool::Factory> MakeVerifierFactory(const RewardSection& reward);

// How long a RewardPool may need at most for `samples` after the last Submit: what its requests,
// with all their tries, may take.
std::chrono::milliseconds CollectLimit(const RewardSection& reward, int64_t samples);

}  // namespace keel::rewards
