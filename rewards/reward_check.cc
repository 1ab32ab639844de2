#include "rewards/reward_check.h"

#include <fmt/format.h>

#include <algorithm>
#include <vector>

namespace keel::rewards {

namespace {

// The rest of an address is libcurl's to judge, at the start of the run. What is no address is not
// repeated: nobody can tell what of it is a password.
Status CheckScheme(const std::string& url, const std::string& key) {
  for (const char* scheme : {"http://", "https://"})
    if (url.starts_with(scheme) && url.size() > std::string(scheme).size()) return Status::Ok();
  return Status(StatusCode::kConfig,
                key + "url: expected http://host[:port][/path], or https:// before the host");
}

// What is given must be what the type reads.
Status CheckFunction(const RewardFunction& function) {
  const VerifierSection& w = function.verifier;
  const RewardType type = TypeOf(w);
  const auto refuse = [&](const std::string& text) {
    return Status(StatusCode::kConfig, function.key + text);
  };
  if (type != RewardType::kCommand && !w.command.empty())
    return refuse("command belongs to " + function.key + "type: command");
  if (type != RewardType::kHttp && w.url)
    return refuse("url belongs to " + function.key + "type: http");
  if (type != RewardType::kPython && w.custom_reward_function.path) {
    return refuse(fmt::format("custom_reward_function.path belongs to {}type: python, which is {}",
                              function.key, NameOf(type)));
  }
  switch (type) {
    case RewardType::kCommand:
      if (w.command.empty())
        return refuse("type is command, but " + function.key + "command is empty");
      return Status::Ok();
    case RewardType::kHttp:
      if (!w.url) return refuse("type is http, but " + function.key + "url is not given");
      return CheckScheme(*w.url, function.key);
    case RewardType::kPython:
      if (!w.custom_reward_function.path) {
        return refuse("type is python, but " + function.key +
                      "custom_reward_function.path is not given");
      }
      return Status::Ok();
    default:
      return MakeRuleVerifier(RuleOptionsOf(w)).status();
  }
}

}  // namespace

Status CheckReward(const RewardSection& reward) {
  KEEL_ASSIGN_OR_RETURN(const std::vector<RewardFunction> functions, RewardFunctions(reward));
  for (const RewardFunction& function : functions) KEEL_RETURN_IF_ERROR(CheckFunction(function));
  return Status::Ok();
}

RuleOptions RuleOptionsOf(const VerifierSection& reward) {
  RuleOptions options;
  options.type = reward.type;
  options.flexible = reward.method == RewardMethod::kFlexible;
  options.format_score = reward.format_score;
  options.format_pattern = reward.format_pattern;
  options.format_weight = reward.format_weight;
  return options;
}

bool AnyFunction(const RewardSection& reward,
                 const std::function<bool(const VerifierSection&)>& holds) {
  const auto functions = RewardFunctions(reward);
  return functions.ok() &&
         std::any_of(functions->begin(), functions->end(),
                     [&](const RewardFunction& function) { return holds(function.verifier); });
}

std::vector<RewardType> RulesOf(const RewardSection& reward) {
  std::vector<RewardType> all = RewardRules();
  all.push_back(RewardType::kAuto);
  std::erase_if(all, [&](RewardType rule) {
    return !AnyFunction(reward, [&](const auto& one) { return TypeOf(one) == rule; });
  });
  return all;
}

bool IsStrictGsm8k(const RewardSection& reward, const std::string& data_source) {
  return AnyFunction(reward, [&](const VerifierSection& verifier) {
    const RewardType type = TypeOf(verifier);
    const std::optional<RewardType> rule =
        type == RewardType::kAuto ? RuleOfDataSource(data_source) : std::optional(type);
    return rule == RewardType::kGsm8k && verifier.method == RewardMethod::kStrict;
  });
}

}  // namespace keel::rewards
