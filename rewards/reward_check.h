// Whether the configuration's `reward` section can be used, and what rules make of it; without the
// verifiers that it may need. Torch-free, and free of libcurl.
#pragma once

#include <string>

#include "common/status.h"
#include "rewards/reward_options.h"
#include "rewards/reward_rules.h"

namespace keel::rewards {

// kConfig when no verifier can be made of the section; nothing is started or asked.
Status CheckReward(const RewardSection& reward);

RuleOptions RuleOptionsOf(const RewardSection& reward);

// Whether responses to prompts of this data source are scored by what follows "####" alone.
bool IsStrictGsm8k(const RewardSection& reward, const std::string& data_source);

}  // namespace keel::rewards
