// The rewards of a run: one, or the several of `reward.functions`, each with a name and a weight.
// Torch-free.
#pragma once

#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "common/status.h"
#include "rewards/reward_options.h"

namespace keel::rewards {

struct RewardFunction {
  std::string name;  // "" where there is but one, which needs none
  double weight = 1;
  VerifierSection verifier;
  std::string key;  // what stands before its keys in messages: "reward.", "reward.functions[1]."
};

// By which other keys ask for a response's whole reward, after and before penalties: no function's.
inline constexpr std::string_view kWholeReward = "reward";
inline constexpr std::string_view kWholeScore = "score";

// At least one. kConfig names the entry of reward.functions, and its key, that cannot be used.
Result<std::vector<RewardFunction>> RewardFunctions(const RewardSection& reward);

// By which the files behind the rewards of two ranks, or of two starts, are told apart: "content of
// reward.custom_reward_function.path", "content of verify.py of reward.command"
// (ProgramFileDigests) and a digest each; of what a Python file imports, too. kConfig where a
// Python file cannot be read.
Result<std::map<std::string, std::string>> RewardFileDigests(const RewardSection& reward);

}  // namespace keel::rewards
