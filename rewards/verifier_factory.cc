#include "rewards/verifier_factory.h"

#include <algorithm>
#include <utility>

#include "rewards/command_verifier.h"
#include "rewards/http_verifier.h"
#include "rewards/reward_rules.h"

namespace keel::rewards {

namespace {

RequestOptions RequestsOf(const RewardSection& reward) {
  RequestOptions options;
  options.batch_size = static_cast<size_t>(reward.batch_size);
  options.timeout = std::chrono::milliseconds(static_cast<int64_t>(reward.timeout_seconds * 1000));
  options.max_retries = static_cast<int>(reward.max_retries);
  return options;
}

}  // namespace

Result<RewardPool::Factory> MakeVerifierFactory(const RewardSection& reward) {
  if (reward.type == RewardType::kCommand) {
    if (reward.command.empty())
      return Status(StatusCode::kConfig, "reward.type is command, but reward.command is empty");
    return RewardPool::Factory([command = reward.command, options = RequestsOf(reward)] {
      return std::make_unique<CommandVerifier>(command, options);
    });
  }
  if (reward.type == RewardType::kHttp) {
    KEEL_ASSIGN_OR_RETURN(HttpAddress address, ParseHttpAddress(reward.url.value_or("")));
    return RewardPool::Factory([address = std::move(address), options = RequestsOf(reward)] {
      return std::make_unique<HttpVerifier>(address, options);
    });
  }
  RuleOptions options;
  options.type = reward.type;
  options.flexible = reward.method == RewardMethod::kFlexible;
  options.format_score = reward.format_score;
  options.format_pattern = reward.format_pattern;
  options.format_weight = reward.format_weight;
  KEEL_RETURN_IF_ERROR(MakeRuleVerifier(options).status());
  return RewardPool::Factory([options] { return ValueOrThrow(MakeRuleVerifier(options)); });
}

bool IsStrictGsm8k(const RewardSection& reward, const std::string& data_source) {
  const std::optional<RewardType> rule =
      reward.type == RewardType::kAuto ? RuleOfDataSource(data_source) : std::optional(reward.type);
  return rule == RewardType::kGsm8k && reward.method == RewardMethod::kStrict;
}

std::chrono::milliseconds CollectLimit(const RewardSection& reward, int64_t samples) {
  // A worker may take one sample at a time when they trickle in.
  const int64_t rounds = (samples + reward.num_workers - 1) / reward.num_workers + 1;
  const double each = reward.timeout_seconds * static_cast<double>(1 + reward.max_retries);
  return std::chrono::milliseconds(
      static_cast<int64_t>(1000 * each * static_cast<double>(std::max<int64_t>(1, rounds))));
}

}  // namespace keel::rewards
