// Whether the configuration's `reward` section can be used, and what rules make of it; without the
// verifiers that it may need. Torch-free, and free of libcurl.
#pragma once

#include <functional>
#include <string>
#include <vector>

#include "common/status.h"
#include "rewards/reward_functions.h"
#include "rewards/reward_options.h"
#include "rewards/reward_rules.h"

namespace keel::rewards {

// kConfig when no verifiers can be made of the section; nothing is started, read or asked.
Status CheckReward(const RewardSection& reward);

RuleOptions RuleOptionsOf(const VerifierSection& reward);

// Of one of the section's rewards; false of a section that cannot be used.
bool AnyFunction(const RewardSection& reward,
                 const std::function<bool(const VerifierSection&)>& holds);

// The rules among the section's rewards, kAuto among them, each once.
std::vector<RewardType> RulesOf(const RewardSection& reward);

// Whether responses to prompts of this data source are scored by what follows "####" alone.
bool IsStrictGsm8k(const RewardSection& reward, const std::string& data_source);

}  // namespace keel::rewards
