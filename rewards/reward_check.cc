#include "rewards/reward_check.h"

namespace keel::rewards {

namespace {

// The rest of an address is libcurl's to judge, at the start of the run. What is no address is not
// repeated: nobody can tell what of it is a password.
Status CheckScheme(const std::string& url) {
  for (const char* scheme : {"http://", "https://"})
    if (url.starts_with(scheme) && url.size() > std::string(scheme).size()) return Status::Ok();
  return Status(StatusCode::kConfig,
                "reward.url: expected http://host[:port][/path], or https:// before the host");
}

}  // namespace

Status CheckReward(const RewardSection& reward) {
  if (reward.type == RewardType::kCommand) {
    return reward.command.empty()
               ? Status(StatusCode::kConfig, "reward.type is command, but reward.command is empty")
               : Status::Ok();
  }
  if (reward.type == RewardType::kHttp) return CheckScheme(reward.url.value_or(""));
  return MakeRuleVerifier(RuleOptionsOf(reward)).status();
}

RuleOptions RuleOptionsOf(const RewardSection& reward) {
  RuleOptions options;
  options.type = reward.type;
  options.flexible = reward.method == RewardMethod::kFlexible;
  options.format_score = reward.format_score;
  options.format_pattern = reward.format_pattern;
  options.format_weight = reward.format_weight;
  return options;
}

bool IsStrictGsm8k(const RewardSection& reward, const std::string& data_source) {
  const std::optional<RewardType> rule =
      reward.type == RewardType::kAuto ? RuleOfDataSource(data_source) : std::optional(reward.type);
  return rule == RewardType::kGsm8k && reward.method == RewardMethod::kStrict;
}

}  // namespace keel::rewards
