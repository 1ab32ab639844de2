// From the configuration's `reward` section to verifiers. Torch-free.
#pragma once

#include <string>
#include <vector>

#include "common/status.h"
#include "rewards/reward_options.h"
#include "rewards/reward_pool.h"

namespace keel::rewards {

// Makes a verifier per call: of the section's one reward, or the weighted sum of its several.
// kConfig when the section cannot be used, or a token is not in the environment; nothing is started
// yet.
Result<RewardPool::Factory> MakeVerifierFactory(const RewardSection& reward);

// Samples that a worker takes from the pool at once.
size_t PoolBatch(const RewardSection& reward);

// What is to be known of rewards that run in programs of their own choosing, a line each: "reward
// from compute_score of my.py, run by /usr/bin/python3 in 2 processes a rank".
std::vector<std::string> DescribeRewards(const RewardSection& reward);

// How long a RewardPool may need at most for `samples` after the last Submit: what its requests,
// with all their tries, may take.
std::chrono::milliseconds CollectLimit(const RewardSection& reward, int64_t samples);

}  // namespace keel::rewards
